"""What a damaged file of a work folder leads to: an error of one line that names the file and says what to do."""

import contextlib
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator

# What readers of JSON, zip archives, arrays and models raise for content that nobody wrote.
ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError),
    RuntimeError,  # and `NotImplementedError`: encrypted, or compressed in an unknown way
    *(zipfile.BadZipFile, zlib.error, struct.error),
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
        raise ValueError(broken(path, reason_of(error))) from error


def reason_of(error: Exception) -> str:
    """Returns the first line of what an error says."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"no {lines[0]}" if isinstance(error, KeyError) else lines[0].rstrip(".")


def broken(path: pathlib.Path, found: str) -> str:
    """Returns the message about a file of a work folder that is not what was written."""
    return (
        f"`workdir` must hold a {path.name} as `tsa-train` wrote it: take it from a copy, or start the run anew. "
        f"Received: {path}, with {found}."
    )
