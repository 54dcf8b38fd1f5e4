"""Files that are complete or not there at all, whenever the process is killed."""

import contextlib
import os
import pathlib


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


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
