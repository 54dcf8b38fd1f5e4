"""Atomic writes: files and folders that are complete or absent, even if the process is killed."""

import contextlib
import errno
import itertools
import os
import pathlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator

INCOMPLETE = ".incomplete"  # in the names of temporaries
STALE_AFTER = 24 * 3600  # seconds without writes, after which a temporary belongs to a killed process


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path to write to, which is renamed to `path` if the block ends without an error.

    Readers of `path`, also after a loss of power, find either the old content or the new one, never a part of it. With
    several writers at once, the file is what one of them wrote, whole.

    Args:
        path: the file. The temporary one is in the same folder.
    """
    path = pathlib.Path(path)
    # Not the process id: containers that share a volume may have the same one. The extension is preserved since Keras
    # chooses the format by it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}{INCOMPLETE}{path.suffix}")
    try:
        with add_path_to_errors(path):
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path to create a folder at, which replaces `path` if the block ends without an error.

    After an error `path` is as it was before, and nothing is left behind. With several writers at once, the folder is
    what one of them wrote, whole.

    Args:
        path: the folder; its parents are created.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}{INCOMPLETE}-", dir=path.parent))
    try:
        with add_path_to_errors(path):
            yield temporary / "new"
        _publish(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary, path):
    """Rename the folder "new" in `temporary` to `path`. An existing folder at `path` is moved to "old0" first."""
    for number in itertools.count():
        with contextlib.suppress(FileNotFoundError):  # there is none, or another writer has just moved it away
            os.rename(path, temporary / f"old{number}")
        try:
            return os.rename(temporary / "new", path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # another writer was faster
                raise


def remove_stale(folder: str | os.PathLike) -> None:
    """Remove the temporary files and folders in a folder that killed processes left behind.

    A temporary that was written to within a day may belong to a living process, of this machine or of another one with
    the same volume, and stays.

    Args:
        folder: the folder of the files that are written by `atomic_file` and `atomic_folder`.
    """
    for path in pathlib.Path(folder).glob(f".*{INCOMPLETE}*"):
        with contextlib.suppress(OSError):  # Another process may be removing the same one.
            newest = max(each.stat().st_mtime for each in (path, *path.rglob("*")))
            if time.time() - newest > STALE_AFTER:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def add_path_to_errors(path: str | os.PathLike) -> Iterator[None]:
    """Add a path to the errors of a block that writes to it, which say none where a disk is full."""
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
