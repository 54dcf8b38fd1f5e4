"""Token ids of a split on disk."""

import os
from typing import Any

import numpy as np

from tf_sparse_attention.data.array_store import ArrayStore


class TokenStore(ArrayStore):
    """Token ids of the documents of a split in one stream, where each document ends with the end id.

    Made by `open_token_store`, read by `training_batches` and `evaluation_batches`.

    Args:
        folder: folder of the store.

    Attributes:
        tokens: `np.memmap` (num_tokens,) of the smallest unsigned dtype for the vocabulary.
        document_offsets: `np.memmap` int64 (num_documents + 1,). Document i, with its end id, is
            `tokens[document_offsets[i]:document_offsets[i + 1]]`.
        metadata: dictionary: "identity" with tokenizer, source and split, and the counts below.
        num_tokens: number of ids, including the end ids.
        num_documents: number of documents.
        num_bytes: UTF-8 bytes of the text, the divisor of bits per byte.
        num_words: number of words between white space, the divisor of perplexity per word on PG-19.
        end_id, vocabulary_size: as in the tokenizer.

    Raises:
        DamagedDataError: If the folder is damaged or incomplete.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        super().__init__(folder)
        self.tokens, self.document_offsets = self.arrays["tokens"], self.arrays["documents"]
        self.num_tokens, self.num_documents = len(self.tokens), len(self.document_offsets) - 1
        self.num_bytes, self.num_words = self.metadata["num_bytes"], self.metadata["num_words"]
        self.end_id, self.vocabulary_size = self.metadata["end_id"], self.metadata["vocabulary_size"]

    def document(self, index: int) -> np.ndarray:
        """Return the ids of a document with its end id, int32 (T,)."""
        begin, end = self.document_offsets[index], self.document_offsets[index + 1]
        return np.asarray(self.tokens[begin:end], np.int32)


def open_token_store(source: Any, tokenizer: Any, split: str, folder: str | os.PathLike | None = None) -> TokenStore:
    """Open the token ids of a split, and write them first if they do not exist; see `ArrayStore.open`.

    Args:
        source: `TextSource`, or any object with `fingerprint`, `data_dir` and `documents(split)`.
        tokenizer: a `Tokenizer`, or an `AudioCodec` for audio.
        split: name of the split.
        folder: folder of all stores, local or remote. Default: None, "token_stores" in the `data_dir` of the source.

    Raises:
        ValueError: If the split has no documents, the tokenizer returns a special id, or the store is damaged.

    Example:

    >>> store = open_token_store(open_source(), ByteTokenizer(), "train")
    """
    kind = type(tokenizer).__name__
    identity = {
        "source": source.fingerprint,
        "split": split,
        "tokenizer": {"class_name": kind, "config": tokenizer.get_config()},
    }
    folder = os.path.join(source.data_dir, "token_stores") if folder is None else folder
    name = f"{source.fingerprint.split('/')[0]}_{split}_{kind}"
    return TokenStore.open(folder, name, identity, lambda writer: _write(writer, source, tokenizer, split))


def _write(writer, source, tokenizer, split):
    """Write the ids of a split, one document in memory at a time, and return the counts."""
    dtype = np.min_scalar_type(tokenizer.vocabulary_size - 1)
    num_tokens = num_documents = num_bytes = num_words = 0
    writer.append("documents", np.zeros(1, "int64"))
    for document in source.documents(split):
        content = document.encode("utf-8") if isinstance(document, str) else document
        ids = _check_ids(tokenizer.tokenize(content), tokenizer)
        num_tokens, num_documents, num_bytes = num_tokens + len(ids) + 1, num_documents + 1, num_bytes + len(content)
        # A part of a file can begin or end inside a character.
        num_words += len(content.decode("utf-8", errors="replace").split())
        writer.append("tokens", np.append(ids, tokenizer.end_id).astype(dtype))
        writer.append("documents", np.array([num_tokens], "int64"))
    if num_documents == 0:
        raise ValueError(f"`split` must have documents. Received: split={split} of {source.fingerprint}.")
    vocabulary = {"end_id": tokenizer.end_id, "vocabulary_size": tokenizer.vocabulary_size}
    return {"num_bytes": num_bytes, "num_words": num_words, **vocabulary}


def _check_ids(ids, tokenizer):
    """Return the ids of a document, or raise an error if one is special or out of range."""
    special = np.isin(ids, [tokenizer.pad_id, tokenizer.end_id])
    wrong = special | (ids < 0) | (ids >= tokenizer.vocabulary_size)
    if wrong.any():
        raise ValueError(
            f"`tokenizer` must convert text to ids in [0, {tokenizer.vocabulary_size}) that are not special. "
            f"Received: id {ids[wrong][0]} from {type(tokenizer).__name__}."
        )
    return ids
