"""Token ids of a whole split on disk, mapped into memory."""

import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data import checksums

# Raised when the files change meaning, so that older stores are built again.
FORMAT = 1
TOKENS_FILE, OFFSETS_FILE, METADATA_FILE = "tokens.bin", "documents.bin", "metadata.json"


class TokenStore:
    """The documents of a split as one stream of token ids, each followed by the end id, read without loading it.

    Made by `open_token_store`, read by `TrainingBatches` and `evaluation_batches`. A store of any size costs no memory
    but the pages that are read.

    Args:
        folder: folder with a complete store.

    Attributes:
        tokens: `np.memmap` (num_tokens,), the smallest unsigned type that holds the vocabulary.
        document_offsets: `np.memmap` (num_documents + 1,) int64: document i, with its end id, is
            `tokens[document_offsets[i]:document_offsets[i + 1]]`.
        metadata: dictionary: tokenizer, source, split, and the counts below.
        num_tokens: number of ids, one end id a document included.
        num_documents: number of documents.
        num_bytes: UTF-8 bytes of the text, the divisor of bits per byte.
        num_words: words between white space, the divisor of perplexity per word as PG-19 counts it.
        end_id, vocabulary_size: those of the tokenizer.

    Raises:
        ValueError: If the folder holds no complete store, or one whose files are not what was written. The first
            opening in a process reads all of them for that.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        folder = pathlib.Path(folder)
        try:
            self.metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
            if self.metadata["format"] != FORMAT:
                raise KeyError("format")
            self.num_tokens = self.metadata["num_tokens"]
            self.num_documents = self.metadata["num_documents"]
            self.num_bytes = self.metadata["num_bytes"]
            self.num_words = self.metadata["num_words"]
            self.end_id = self.metadata["end_id"]
            self.vocabulary_size = self.metadata["vocabulary_size"]
            self.tokens = _map(folder / TOKENS_FILE, self.metadata["dtype"], self.num_tokens)
            self.document_offsets = _map(folder / OFFSETS_FILE, "int64", self.num_documents + 1)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"`folder` must hold a complete token store. Received: folder={folder} ({error})."
            ) from error
        checksums.check(folder / checksums.FILE, folder)

    def document(self, index: int) -> np.ndarray:
        """Returns the ids of one document, its end id included, as an int32 array."""
        begin, end = self.document_offsets[index], self.document_offsets[index + 1]
        return np.asarray(self.tokens[begin:end], np.int32)


def _map(path, dtype, length):
    # A file that was cut short (a full disk) must not be read as a shorter text.
    expected = length * np.dtype(dtype).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected}")
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))


def read_windows(tokens: np.ndarray, starts: Sequence[int] | np.ndarray, length: int, wrap: bool = False) -> np.ndarray:
    """Reads windows of consecutive tokens.

    Args:
        tokens: array (num_tokens,) of ids, a memory map.
        starts: integers (B,), the position of each window's first token; beyond the end the window is empty.
        length: tokens in a window.
        wrap: whether a window that reaches the end continues at position 0, up to its own start. Otherwise, and where
            the stream is shorter than a window, it is padded with 0 on the right.

    Returns:
        int32 array (B, length).
    """
    windows = np.zeros((len(starts), length), np.int32)
    for window, start in zip(windows, starts, strict=True):
        part = tokens[start : start + length]
        window[: len(part)] = part
        if wrap and len(part) < length:
            wrapped = tokens[: min(length - len(part), start)]
            window[len(part) : len(part) + len(wrapped)] = wrapped
    return windows
