"""Batches of texts with class ids, in buckets of similar length."""

import logging
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data.batches.batches import Rows
from tf_sparse_attention.data.batches.length_buckets import LengthBuckets
from tf_sparse_attention.data.token_store import TokenStore


class LabeledBuckets(LengthBuckets):
    """Texts with class ids in buckets of similar length, for `tsa.models.SequenceClassifier`.

    A row is id 0, the ids of the text and its end id. The vector at id 0 represents the text if the model pools the
    first position. Longer rows are truncated to `max_length`.

    Args:
        store: `TokenStore`.
        classes: int (num_documents,), the class id of each document.
        batch_size: texts per batch in the longest bucket.
        max_length: maximum number of positions per row.
        chosen: numbers of the documents to read. Default: None, all.

    Attributes:
        lengths, num_batches: see `LengthBuckets`.
        num_cut: number of truncated texts.

    Raises:
        ValueError: If `classes` has the wrong length, or a size is out of range.

    Example:

    >>> source = open_labeled(path="reviews.jsonl", data_dir="/tmp/data")
    >>> store = open_token_store(source.text, ByteTokenizer(), "train")
    >>> class_ids = source.class_ids("train", source.classes("train"))
    >>> buckets = LabeledBuckets(store, class_ids, batch_size=8, max_length=1024)
    >>> inputs, targets, weights = buckets.training_batches(seed=0)[300]
    """

    def __init__(
        self,
        store: TokenStore,
        classes: Sequence[int] | np.ndarray,
        batch_size: int,
        max_length: int,
        chosen: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        if len(classes) != store.num_documents:
            raise ValueError(
                "`classes` must have one id per document of `store`. "
                f"Received: {len(classes)} classes, {store.num_documents} documents."
            )
        self.store, self.classes = store, np.asarray(classes, np.int32)
        self.chosen = np.arange(store.num_documents) if chosen is None else np.asarray(chosen)
        sizes = np.diff(store.document_offsets)[self.chosen] + 1
        self.num_cut = int(np.sum(sizes > max_length))
        super().__init__(np.minimum(sizes, max_length), batch_size, max_length, names=("text", "token"))
        if self.num_cut:
            logging.info("%d of %d texts are truncated to %d tokens.", self.num_cut, len(sizes), max_length)

    def read(self, rows: Rows) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Read the batch of the given rows.

        Returns:
            `(inputs, classes, weights)`: inputs {"token_ids": int32 (B, T), "padding_mask": bool (B, T)}; classes int32
            (B,); weights float32 (B,), 0 for empty rows.
        """
        exists = rows.items >= 0
        numbers = self.chosen[rows.items[exists]]
        documents = [self.store.document(number) for number in numbers]
        classes = np.zeros(len(rows.items), np.int32)
        classes[exists] = self.classes[numbers]
        return pack_texts(documents, rows.length, len(rows.items)), classes, exists.astype("float32")


def pack_texts(documents: Sequence[np.ndarray], length: int, num_rows: int | None = None) -> dict[str, np.ndarray]:
    """Return the inputs of a `tsa.models.SequenceClassifier`, "token_ids" int32 and "padding_mask" bool (B, T).

    Args:
        documents: ids of each document with its end id. Id 0 is prepended to each document.
        length: T, the maximum row length; longer rows are truncated.
        num_rows: B; rows without a document have only id 0. Default: None, the number of documents.
    """
    num_rows = len(documents) if num_rows is None else num_rows
    ids, mask = np.zeros((num_rows, length), np.int32), np.zeros((num_rows, length), bool)
    mask[:, 0] = True
    for row, document in enumerate(documents):
        kept = document[: length - 1]
        ids[row, 1 : 1 + len(kept)] = kept
        mask[row, : 1 + len(kept)] = True
    return {"token_ids": ids, "padding_mask": mask}
