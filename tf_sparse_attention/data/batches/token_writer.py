"""Builds token stores: once, one document at a time, atomically."""

import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import numpy as np

from tf_sparse_attention.atomic_files import INCOMPLETE, add_path_to_errors, remove_stale
from tf_sparse_attention.data import checksums
from tf_sparse_attention.data.batches.remote_stores import open_copy
from tf_sparse_attention.data.batches.token_store import FORMAT, METADATA_FILE, OFFSETS_FILE, TOKENS_FILE, TokenStore
from tf_sparse_attention.remote_files import is_remote


def open_token_store(source: Any, tokenizer: Any, split: str, folder: str | os.PathLike | None = None) -> TokenStore:
    """Opens the token ids of a split, building them if they are not there yet.

    The name of a store comes from the source's fingerprint, the split and the tokenizer with its configuration: with
    another of them another store is built, and an incomplete one is built again. Its files have checksums: one that
    is damaged, or was moved to another's place, is an error. It is written to a temporary folder and renamed, so a
    killed process leaves nothing that would be read, and two processes that build the same store at once both end with
    one complete store.

    Args:
        source: `TextSource`, or any object with `fingerprint` and `documents(split)`.
        tokenizer: `ByteTokenizer` or another with its interface, or for sound an `AudioCodec`.
        split: name of the split.
        folder: folder of all stores; None is "token_stores" in the source's `data_dir`. At an address such as
            gs://bucket/stores a store is read from a local copy, and copied there once it is built.

    Returns:
        `TokenStore`.

    Raises:
        ValueError: If the split has no documents, the tokenizer gives a special id for text, or the store is not what
            was written.

    Example:

    >>> store = open_token_store(open_source(), ByteTokenizer(), "train")
    """
    identity = {
        "format": FORMAT,
        "source": source.fingerprint,
        "split": split,
        "tokenizer": {"class_name": type(tokenizer).__name__, "config": tokenizer.get_config()},
    }
    folder = os.path.join(source.data_dir, "token_stores") if folder is None else folder
    open_local = functools.partial(_open, source, tokenizer, identity)
    if is_remote(folder):
        return open_copy(folder, _store_name(identity), open_local)
    return open_local(pathlib.Path(folder).expanduser())


def _open(source, tokenizer, identity, root):
    """Opens or builds a store on a local disk."""
    target = root / _store_name(identity)
    found = _complete_store(target)
    if found is not None:
        checksums.check(target / checksums.FILE, target, identity)
        return found
    root.mkdir(parents=True, exist_ok=True)
    remove_stale(root)
    with _incomplete_folder(root) as incomplete:
        _write(incomplete, source.documents(identity["split"]), tokenizer, identity)
        _publish(incomplete, target)
    return TokenStore(target)


def _complete_store(folder):
    """Returns the store in a folder, None if it is incomplete or not there. A damaged one is an error."""
    try:
        return TokenStore(folder)
    except checksums.DamagedDataError:
        raise
    except ValueError:
        return None


def _store_name(identity):
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    readable = f"{identity['source'].split('/')[0]}_{identity['split']}_{identity['tokenizer']['class_name']}"
    return f"{re.sub('[^A-Za-z0-9]+', '_', readable)}_{digest}"


@contextlib.contextmanager
def _incomplete_folder(root):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f".store{INCOMPLETE}-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # Gone already after a rename.


def _write(folder, documents, tokenizer, identity):
    """Writes a complete store into `folder`, holding one document at a time."""
    dtype = np.min_scalar_type(tokenizer.vocabulary_size - 1)
    counts = collections.Counter(num_tokens=0, num_documents=0, num_bytes=0, num_words=0)
    with _synced_file(folder / TOKENS_FILE) as tokens_file, _synced_file(folder / OFFSETS_FILE) as offsets_file:
        offsets_file.write(np.int64(0).tobytes())
        for document in documents:
            content = document.encode("utf-8") if isinstance(document, str) else document
            ids = _check_ids(tokenizer.tokenize(content), tokenizer)
            # A file that was split by bytes may begin or end inside a character.
            words = content.decode("utf-8", errors="replace").split()
            counts.update(num_tokens=len(ids) + 1, num_documents=1, num_bytes=len(content), num_words=len(words))
            tokens_file.write(np.append(ids, tokenizer.end_id).astype(dtype).tobytes())
            offsets_file.write(np.int64(counts["num_tokens"]).tobytes())
    if counts["num_documents"] == 0:
        raise ValueError(f"`split` must have documents. Received: split={identity['split']} of {identity['source']}.")
    vocabulary = {"dtype": dtype.name, "end_id": tokenizer.end_id, "vocabulary_size": tokenizer.vocabulary_size}
    with _synced_file(folder / METADATA_FILE) as file:
        file.write(json.dumps(identity | vocabulary | counts, indent=1, sort_keys=True).encode())
    files = {name: folder / name for name in (TOKENS_FILE, OFFSETS_FILE, METADATA_FILE)}
    checksums.write_checksums(folder / checksums.FILE, files, identity)


def _check_ids(ids, tokenizer):
    """Returns the ids of a document, none of which may be special, since those mark documents and padding."""
    special = np.isin(ids, [tokenizer.pad_id, tokenizer.end_id])
    wrong = special | (ids < 0) | (ids >= tokenizer.vocabulary_size)
    if wrong.any():
        raise ValueError(
            f"`tokenizer` must give ids in [0, {tokenizer.vocabulary_size}) other than its special ones for text. "
            f"Received: id {ids[wrong][0]} from {type(tokenizer).__name__}."
        )
    return ids


@contextlib.contextmanager
def _synced_file(path):
    """Opens a file for writing that is on the disk when the block ends, so that a rename never outruns the data."""
    with add_path_to_errors(path), open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _publish(incomplete, target):
    """Renames a complete store to its final path, unless another process was faster; replaces an incomplete one."""
    if _complete_store(target) is not None:
        return
    if target.exists():
        with _incomplete_folder(target.parent) as aside:
            os.rename(target, aside / "damaged")
    try:
        os.rename(incomplete, target)
    except OSError:
        TokenStore(target)  # Raises unless it is the other process's complete store that is in the way.
