"""What a damaged file of a work folder leads to: an error of one line that names the file and says what to do."""

import contextlib
import pathlib
import zipfile
import zlib
from collections.abc import Iterator

# What readers of JSON, zip archives, arrays and models raise for content that nobody wrote.
ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


@contextlib.contextmanager
def named(path: pathlib.Path) -> Iterator[None]:
    """Turns the errors of a block that reads a file into one `ValueError` about the file.

    Args:
        path: the file, in a work folder.

    Raises:
        ValueError: For anything in `ERRORS`.
    """
    try:
        yield
    except ERRORS as error:
        lines = str(error).strip().splitlines() or [""]
        reason = f"no {lines[0]}" if isinstance(error, KeyError) else lines[0] or type(error).__name__
        raise ValueError(broken(path, reason)) from error


def broken(path: pathlib.Path, found: str) -> str:
    """Returns the message about a file of a work folder that is not what was written."""
    return (
        f"`workdir` must hold a {path.name} as `trainers.train` wrote it: take it from a copy, or start the run anew. "
        f"Received: {path}, with {found}."
    )
