"""Atomic writes: files and folders that are complete or absent, even if the process is killed."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary path to write to, which is renamed to `path` if the block ends without an error.

    Readers of `path`, also after a loss of power, find either the old content or the new one, never a part of it.

    Args:
        path: the file. The temporary one is in the same folder.
    """
    path = pathlib.Path(path)
    # The extension is preserved since Keras chooses the format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.incomplete{path.suffix}")
    try:
        with naming(path):
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary path to create a folder at, which replaces `path` if the block ends without an error.

    After an error `path` is as it was before, and nothing is left behind.

    Args:
        path: the folder; its parents are created.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.incomplete-", dir=path.parent))
    try:
        with naming(path):
            yield temporary / "new"
        if path.exists():
            os.rename(path, temporary / "old")
        os.rename(temporary / "new", path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Adds a path to the errors of a block that writes to it, which say none where a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
