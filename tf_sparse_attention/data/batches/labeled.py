"""Batches of texts with the number of their class, those of like length together."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_sparse_attention.checks import check_seed
from tf_sparse_attention.data.batches.length_buckets import Batch, LengthBuckets
from tf_sparse_attention.data.batches.streams import in_background
from tf_sparse_attention.data.batches.token_store import TokenStore

if TYPE_CHECKING:
    import tensorflow as tf


class LabeledBuckets(LengthBuckets):
    """Texts with the number of their class, by length, for `tsa.models.SequenceClassifier`.

    A row is id 0, whose vector stands for the whole text where the first one is read, the ids of the text and its end
    id; a row that is longer than `max_length` is cut, so that every text has its class.

    Args:
        store: `TokenStore`.
        classes: int (documents of the store,), the number of the class of each.
        batch_size: texts in a batch of the longest.
        max_length: the most positions of a row.
        seed: of the order in training, integer in [0, 2**63). Default 0.
        chosen: numbers of the documents to read. None: all.

    Attributes:
        lengths, num_batches: see `LengthBuckets`.
        num_cut: texts of which the end is left out.

    Raises:
        ValueError: if there are not as many classes as documents, or a size or the seed is out of range.

    Example:

    >>> source = open_labeled(path="reviews.jsonl", data_dir="/tmp/data")
    >>> store = open_token_store(source.text, ByteTokenizer(), "train")
    >>> numbers = source.class_ids("train", source.classes("train"))
    >>> buckets = LabeledBuckets(store, numbers, batch_size=8, max_length=1024)
    >>> inputs, classes, weights = next(iter(buckets.dataset(start_step=300)))
    """

    def __init__(
        self,
        store: TokenStore,
        classes: Sequence[int] | np.ndarray,
        batch_size: int,
        max_length: int,
        seed: int = 0,
        chosen: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        if len(classes) != store.num_documents:
            raise ValueError(
                "`classes` must be as many as the documents of `store`. "
                f"Received: {len(classes)} classes, {store.num_documents} documents."
            )
        check_seed(seed)
        self.store, self.seed = store, seed
        self._classes = np.asarray(classes, np.int32)
        self.chosen = np.arange(store.num_documents) if chosen is None else np.asarray(chosen)
        sizes = np.diff(store.document_offsets)[self.chosen] + 1
        self.num_cut = int(np.sum(sizes > max_length))
        super().__init__(np.minimum(sizes, max_length), batch_size, max_length, names=("text", "token"))
        if self.num_cut:
            logging.info("%d of %d texts are cut at %d tokens.", self.num_cut, len(sizes), max_length)

    def class_of(self, number: int) -> int:
        """Returns the number of the class of a document."""
        return int(self._classes[number])

    def read(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns ids int32 and mask bool (B, T), classes int32 and weights float32 (B,), of a batch.

        Args:
            batch: from `batches` or `batch_of`; empty rows, of weight 0, are the last.
        """
        numbers = self.chosen[batch.items[batch.items >= 0]]
        ids, mask = rows_of([self.store.document(number) for number in numbers], batch.length, len(batch.items))
        classes = np.zeros(len(batch.items), np.int32)
        classes[: len(numbers)] = self._classes[numbers]
        return ids, mask, classes, (batch.items >= 0).astype("float32")

    def dataset(self, start_step: int = 0, num_steps: int | None = None, **shard: int) -> "tf.data.Dataset":
        """Returns the batches of training from a step on, of which each is a pure function of (seed, step).

        An epoch has each text once; those of a batch and the order of batches are drawn for each epoch.

        Args:
            start_step: the first step.
            num_steps: number of steps. None: endless. Default: None.
            **shard: `num_shards`, `shard_index` and `num_parts`, see `shard_rows`.

        Returns:
            `tf.data.Dataset` of `(inputs, classes, weights)`: inputs {"token_ids": int32 (B, T), "padding_mask": bool
            (B, T)}, of shapes that differ by batch; classes int32 (B,), and weights float32 (B,), 0 for empty rows.
        """
        return self.training_dataset(self.element, self.seed, start_step, num_steps, **shard)

    def evaluation_batches(
        self, first_batch: int = 0, num_batches: int | None = None, **shard: int
    ) -> "tf.data.Dataset":
        """Returns the batches of all texts, each once, in the same order every time; elements as in `dataset`.

        Args:
            first_batch: index of the first batch, to resume. Default 0.
            num_batches: number of batches. None: all remaining ones.
            **shard: as for `dataset`.
        """
        return self.evaluation_dataset(self.element, first_batch, num_batches, **shard)

    def element(self, counter: Any, part_of: Callable) -> Any:
        """Returns the element of a counter, see `LengthBuckets.training_dataset`."""
        import tensorflow as tf

        kinds = tf.int32, tf.bool, tf.int32, tf.float32
        read = tf.numpy_function(
            in_background(lambda number: self.read(part_of(number)[0])), [counter], kinds, stateful=False
        )
        shapes = (None, None), (None, None), (None,), (None,)
        ids, mask, classes, weights = (tf.ensure_shape(x, shape) for x, shape in zip(read, shapes, strict=True))
        return {"token_ids": ids, "padding_mask": mask}, classes, weights


def rows_of(documents: Sequence[np.ndarray], length: int, num_rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a `tsa.models.SequenceClassifier` reads of documents: ids int32 and mask bool (num_rows, length).

    Args:
        documents: ids of each, with its end id, without the id 0 that comes first.
        length: positions, at which what is longer is cut.
        num_rows: rows, of which those without a document have id 0 alone. None: as many as documents.
    """
    num_rows = len(documents) if num_rows is None else num_rows
    ids, mask = np.zeros((num_rows, length), np.int32), np.zeros((num_rows, length), bool)
    mask[:, 0] = True
    for row, document in enumerate(documents):
        kept = document[: length - 1]
        ids[row, 1 : 1 + len(kept)] = kept
        mask[row, : 1 + len(kept)] = True
    return ids, mask
