"""Batches of labeled texts and of pairs of texts, in buckets of similar length."""

import logging
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.checks import check_switch
from tf_sparse_attention.data.batches.batches import Rows
from tf_sparse_attention.data.batches.length_buckets import LengthBuckets
from tf_sparse_attention.data.batches.windows import pack_windows
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

    A row has id 0 and a document with its end id, truncated to `length`. Rows without a document have only id 0.
    """
    num_rows = len(documents) if num_rows is None else num_rows
    ids, mask = np.zeros((num_rows, length), np.int32), np.zeros((num_rows, length), bool)
    mask[:, 0] = True
    for row, document in enumerate(documents):
        kept = document[: length - 1]
        ids[row, 1 : 1 + len(kept)] = kept
        mask[row, : 1 + len(kept)] = True
    return {"token_ids": ids, "padding_mask": mask}


class PairBuckets(LengthBuckets):
    """Pairs of documents in buckets of similar length.

    Args:
        source: `TokenStore`. Its document i is paired with document i of `target`.
        target: `TokenStore`.
        batch_size: pairs per batch in the longest bucket.
        max_length: maximum tokens of a source and of a target. A warning reports how many longer pairs are left out.
        as_prefix: whether a pair is one sequence for a language model, the source followed by the target; see
            `pack_prefixes`. `max_length` then limits the summed lengths. Default False: two sequences for an
            encoder-decoder; see `pack_pairs`.

    Attributes:
        num_empty: dictionary with the number of empty documents of "source" and "target". Pairs with empty documents
            are not left out: an empty document has only its end id.
        lengths, is_too_long, num_batches: see `LengthBuckets`.

    Raises:
        ValueError: If the stores have different numbers of documents, a size is not positive or no pair is left.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> english, french = (open_token_store(side, ByteTokenizer(), "train") for side in pairs)
    >>> buckets = PairBuckets(english, french, batch_size=2, max_length=4096)
    >>> inputs, targets, weights = buckets.training_batches(seed=0)[300]
    """

    def __init__(
        self, source: TokenStore, target: TokenStore, batch_size: int, max_length: int, as_prefix: bool = False
    ) -> None:
        check_switch("as_prefix", as_prefix)
        if source.num_documents != target.num_documents:
            raise ValueError(
                "`source` and `target` must have the same number of documents. "
                f"Received: {source.num_documents} and {target.num_documents}."
            )
        self.source, self.target, self.as_prefix = source, target, as_prefix
        both = [np.diff(store.document_offsets) for store in (source, target)]
        self.num_empty = {side: int(np.sum(sizes <= 1)) for side, sizes in zip(("source", "target"), both, strict=True)}
        for side, count in self.num_empty.items():
            if count:
                logging.warning("%d of %d pairs have an empty %s; they are not left out.", count, len(both[0]), side)
        super().__init__(np.add(*both) if as_prefix else np.maximum(*both), batch_size, max_length)

    def read(self, rows: Rows, use_source: bool = True) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Read the batch of the given rows, see `pack_pairs` and `pack_prefixes`.

        Args:
            rows: the pairs.
            use_source: whether to read sources. Default True. False: each source is only its end id.
        """
        sources, targets = np.zeros((2, len(rows.items), rows.length), np.int32)
        is_target = np.zeros(targets.shape, bool)
        for row, pair in enumerate(rows.items):
            if pair < 0:
                continue
            source, target = self.source.document(pair)[0 if use_source else -1 :], self.target.document(pair)
            sources[row, : len(source)] = source
            if self.as_prefix:
                end = len(source) + len(target)
                sources[row, len(source) : end], is_target[row, len(source) : end] = target, True
            else:
                targets[row, : len(target)] = target
        return pack_prefixes(sources, is_target) if self.as_prefix else pack_pairs(sources, targets)


def pack_pairs(sources: np.ndarray, targets: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return inputs, targets and weights for a `tsa.models.SequenceToSequence`.

    Args:
        sources: int32 (B, S), 0 for padding on the right.
        targets: int32 (B, T), 0 for padding on the right.

    Returns:
        `(inputs, targets, weights)`: inputs {"encoder_token_ids", "encoder_padding_mask", "decoder_token_ids",
        "decoder_padding_mask"}, where decoder inputs are the targets shifted right by one after id 0; weights,
        float32 (B, T), 1 on tokens and 0 on padding.
    """
    inputs, targets, weights = pack_windows(targets, use_packing=False)
    encoder_inputs = {"encoder_token_ids": sources, "encoder_padding_mask": sources != 0}
    return {**encoder_inputs, **{f"decoder_{name}": x for name, x in inputs.items()}}, targets, weights


def pack_prefixes(ids: np.ndarray, is_target: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return inputs, targets and weights for a language model that is scored on some of its tokens.

    Args:
        ids: int32 (B, T), 0 for padding on the right.
        is_target: bool (B, T), whether a token is scored.

    Returns:
        `(inputs, targets, weights)`: inputs {"token_ids", "padding_mask"}, the ids shifted right by one after id 0;
        targets, the ids where `is_target` and 0 elsewhere; weights, float32 (B, T), 1 where `is_target`. A loss
        is then the mean over scored tokens.
    """
    inputs, ids, _ = pack_windows(ids, use_packing=False)
    return inputs, np.where(is_target, ids, 0), is_target.astype("float32")
