"""Atomic writes of files and folders: complete or absent, even if the process is killed."""

import contextlib
import errno
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

INCOMPLETE = ".incomplete"  # in the names of temporary files and folders
STALE_AFTER = 24 * 3600  # seconds without writes until a temporary file counts as left by a killed process


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path, which is renamed to `path` if the block ends without an error.

    Readers of `path` find the complete old or new content, even after a power failure. With concurrent writers, the
    file has the complete content of one of them. The temporary file is in the same folder.
    """
    path = pathlib.Path(path)
    # Not the process id, which may be the same in containers that share a volume. The extension stays, because Keras
    # derives the format from it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}{INCOMPLETE}{path.suffix}")
    try:
        with add_path_to_errors(path):
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write plain data as JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path for a folder, which replaces `path` if the block ends without an error.

    After an error, `path` is unchanged and the temporary folder is removed. With concurrent writers, the folder has the
    complete content of one of them. Its parents are created.
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
        with contextlib.suppress(FileNotFoundError):  # it does not exist, or another writer has just moved it
            os.rename(path, temporary / f"old{number}")
        try:
            return os.rename(temporary / "new", path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # another writer was faster
                raise


def remove_stale(folder: str | os.PathLike) -> None:
    """Remove temporary files and folders that killed processes left in a folder.

    Files that were written within a day stay: they may belong to a running process on this machine, or on another
    machine with the same volume.
    """
    for path in pathlib.Path(folder).glob(f".*{INCOMPLETE}*"):
        with contextlib.suppress(OSError):  # another process may remove the same file
            newest = max(each.stat().st_mtime for each in (path, *path.rglob("*")))
            if time.time() - newest > STALE_AFTER:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def add_path_to_errors(path: str | os.PathLike) -> Iterator[None]:
    """Add a path to the `OSError`s of a block that writes to it; errors for a full disk have none."""
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
