"""One-line error messages for damaged files of a run directory."""

import contextlib
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator

# Errors that readers of JSON, zip archives, arrays and models raise for damaged content.
ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError),
    RuntimeError,  # with `NotImplementedError`: encryption, or an unknown compression
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@contextlib.contextmanager
def convert_errors(path: pathlib.Path) -> Iterator[None]:
    """Convert `ERRORS` in a block that reads `path`, a file of a run directory, to a `ValueError` that names it."""
    try:
        yield
    except ERRORS as error:
        raise ValueError(error_message(path, short_reason(error))) from error


def short_reason(error: Exception) -> str:
    """Return the first line of an error message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"no {lines[0]}" if isinstance(error, KeyError) else lines[0].rstrip(".")


def error_message(path: pathlib.Path, reason: str) -> str:
    """Return the error message for a damaged file of a run directory."""
    return (
        f"`workdir` must hold an intact {path.name}: restore it from a copy, or start a new run. "
        f"Received: {path}, with {reason}."
    )
