"""Files and folders that are complete or not there at all, whenever the process is killed."""

import contextlib
import os
import pathlib
import shutil
import tempfile


@contextlib.contextmanager
def replacing(path):
    """Gives a path beside `path` to write to, and renames it to `path` when the block ends without an error.

    Whoever reads `path`, also after a loss of power, finds the old content or the new one, never a part.
    """
    path = pathlib.Path(path)
    # The extension stays last: Keras decides by it what it writes.
    beside = path.with_name(f".{path.stem}.{os.getpid()}.incomplete{path.suffix}")
    try:
        yield beside
        _flush(beside)
        os.replace(beside, path)
        _flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path):
    """Gives a path beside `path` to make a folder at, which replaces `path` when the block ends without an error.

    A failure leaves what was at `path`, and nothing else.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.incomplete-", dir=path.parent))
    try:
        yield beside / "new"
        if path.exists():
            os.rename(path, beside / "old")
        os.rename(beside / "new", path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
