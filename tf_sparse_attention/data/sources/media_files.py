"""Files of images or of sound: which there are in a folder, their splits, and what is said of odd ones."""

import os
import pathlib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    TextFile,
    content_digest,
    fingerprint_files,
    is_hidden,
    nonempty_splits,
)
from tf_sparse_attention.data.sources.left_out import warn_of_files, warn_of_missing_splits


class MediaFolder:
    """The files of some kinds in a folder, with any folders in it.

    Folders named train, validation or test are the splits; otherwise the hash of each file's content decides (about
    90/5/5, and equal files are never in two), see `text_files.nonempty_splits`. Other and hidden files are left out; a
    warning says so of those that are not hidden, and of splits without a folder where others have one.

    Args:
        path: the folder.
        suffixes: ends of the names of its files, in lower case.
        items: what errors call them, such as "images".

    Attributes:
        name: that of the folder.
        fingerprint: 16 digits that change with any name or content.

    Raises:
        ValueError: If there is no such folder, it holds no such files, or fewer than 3 different ones to split.
    """

    def __init__(self, path: str | os.PathLike, suffixes: Sequence[str], items: str) -> None:
        folder = pathlib.Path(path).expanduser().resolve()
        if not folder.is_dir():
            raise ValueError(
                f"`path` must be an existing folder of {items}, or a file NAME.npz. Received: path={path}."
            )
        parts = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
        files = {split: _list(folder, part, suffixes) for split, part in (parts or {"": folder}).items()}
        if not any(files.values()):
            raise ValueError(f"`path` must hold files {', '.join(suffixes)}. Received: path={path}, without any.")
        files = files if parts else split_files(files[""], path, items)
        _warn_of_left_out(folder, parts, suffixes)
        self._files = {split: found for split, found in files.items() if found}
        self.name = re.sub("[^A-Za-z0-9]+", "_", folder.name).strip("_") or items
        self.fingerprint = fingerprint_files([file for found in self._files.values() for file in found])

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._files)

    def files(self, split: str) -> list[TextFile]:
        """Returns the files of a split, or of a part of one, by name."""
        return select(split, self._files)


def _list(folder, part, suffixes):
    """Returns the files in a part of a folder, `TextFile`s sorted by name."""
    files = []
    for path in part.rglob("*"):
        if path.suffix.lower() in suffixes and not is_hidden(path, folder):
            files.append(TextFile(path.relative_to(folder).as_posix(), path, content_digest(path.read_bytes())))
    return sorted(files, key=lambda file: file.name)


def _warn_of_left_out(folder, parts, suffixes):
    """Logs which splits a folder lacks, and which of its files are in no part of it or of other kinds."""
    warn_of_missing_splits(folder, parts)
    kinds: dict[bool, list[pathlib.Path]] = {True: [], False: []}
    for path in folder.rglob("*"):
        kinds[path.suffix.lower() in suffixes].append(path)
    warn_of_files(folder, kinds[False], f"not {', '.join(suffixes)}")
    if parts:
        outside = [path for path in kinds[True] if path.relative_to(folder).parts[0] not in parts]
        warn_of_files(folder, outside, f"not in {', '.join(parts)}")


def split_files(files: Sequence[TextFile], path: str | os.PathLike, items: str) -> dict[str, list[TextFile]]:
    """Returns the files of a folder without folders for the splits by split, none of which is empty.

    See `text_files.nonempty_splits`: the contents alone decide.

    Args:
        files: all files.
        path: the folder, for errors.
        items: what errors call the files, such as "images".

    Raises:
        ValueError: If fewer than 3 of them are different.
    """
    different = len({file.digest for file in files})
    if different < len(SPLITS):
        raise ValueError(
            f"`path` must hold 3 different {items} or more, for training, validation and testing, or folders of these "
            f"names. Received: path={path} with {different}."
        )
    return nonempty_splits(list(files))


def select(split: str, items: Mapping[str, Sequence[Any] | np.ndarray]) -> list[Any]:
    """Returns the items of a split, or of a part of one, in the syntax of TFDS ("train[:90%]", "train+test").

    Args:
        split: the split.
        items: those of each split.

    Raises:
        ValueError: If there is no such split.
    """
    sizes = {name: types.SimpleNamespace(name=name, num_examples=len(own)) for name, own in items.items()}
    try:
        parts = import_tfds().core.ReadInstruction.from_spec(split).to_absolute(sizes)
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"`split` must be one of {', '.join(items)}, or a part of one, such as train[:90%] and train[90%:]. "
            f"Received: split={split}."
        ) from error
    return [item for part in parts for item in items[part.splitname][part.from_ : part.to]]


def without_odd(
    items: Iterator[tuple[str, Any]], find_fault: Callable[[Any], str | None], expected: str
) -> Iterator[Any]:
    """Yields items up to the first odd one; at the end, all having been looked at, raises an error if there was any.

    Args:
        items: pairs of a name and an item, or as text what is wrong with it.
        find_fault: function of an item that returns what is wrong with it, as text, or None.
        expected: what `path` or `tfds` must hold.

    Raises:
        ValueError: At the end, with the name of the first odd one and their number.
    """
    odd, count = [], 0
    for name, item in items:
        count += 1
        fault = item if isinstance(item, str) else find_fault(item)
        if fault:
            odd.append(f"{name}, {fault}")
        elif not odd:
            yield item
    if odd:
        raise ValueError(
            f"`path` or `tfds` must hold {expected} alone. "
            f"Received: {len(odd)} of {count} that are not, the first {odd[0]}."
        )
