"""Imports of TensorFlow without its lines on what is as it should be."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator

# TensorFlow 2.21 prints these while it is imported, whatever TF_CPP_MIN_LOG_LEVEL says: its logging is not set up yet.
NOISE = (
    b"All log messages before absl::InitializeLog() is called",
    b"oneDNN custom operations are on",
    b"This TensorFlow binary is optimized",
    b"To enable the following instructions",
    b"Unable to register cu",  # of a second library of CUDA that is linked in, always
)
NO_GPU = b"Could not find cuda drivers on your machine"
AFTER_NO_GPU = (NO_GPU, b"failed call to cuInit")  # which says no more, where there is no driver


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Context in which what is printed on standard error comes at its end, without the lines that say nothing.

    Errors and warnings stay, and so does a GPU whose driver does not work.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            os.write(2, b"".join(lines_that_matter(file.readlines())))


def lines_that_matter(lines: Iterable[bytes]) -> list[bytes]:
    """Returns lines without those that TensorFlow prints where nothing is wrong."""
    lines = list(lines)
    noise = (*NOISE, *AFTER_NO_GPU) if any(NO_GPU in line for line in lines) else NOISE
    return [line for line in lines if not any(text in line for text in noise)]
