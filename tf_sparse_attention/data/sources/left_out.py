"""Says once, in the log, what of a data set is not read: splits without a folder, files in none or of other names."""

import functools
import logging
import pathlib
from collections.abc import Iterable

from tf_sparse_attention.data.sources.file_splits import SPLITS, is_hidden


def warn_of_missing_splits(folder: pathlib.Path, parts: Iterable[str]) -> None:
    """Logs a warning if a folder has folders for some of the splits and not for others.

    Args:
        folder: the folder.
        parts: names of the splits that it has folders for; with none of them there is nothing to say.
    """
    named = [split for split in SPLITS if split in parts]
    missing = [split for split in SPLITS if split not in named]
    if named and missing:
        warn_once(f"{folder} has a folder for {', '.join(named)} alone: there is no split {' or '.join(missing)}.")


def warn_of_files(folder: pathlib.Path, files: Iterable[pathlib.Path], why: str) -> None:
    """Logs a warning of files that are left out, with their number and the first of their names.

    Args:
        folder: the folder that they are in.
        files: the files; folders, and what is hidden, are left out without a word.
        why: what they are not, such as "not in train".
    """
    names = sorted(
        path.relative_to(folder).as_posix() for path in files if not is_hidden(path, folder) and path.is_file()
    )
    if names:
        warn_once(f"{len(names)} of the files in {folder} left out ({why}), such as {names[0]}.")


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning, once in a process: a program opens its data set once for each split."""
    logging.warning("%s", message)
