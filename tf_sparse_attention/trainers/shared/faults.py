"""Faults of a program, which end with a traceback, as opposed to wrong commands, settings and files."""

import contextlib
from collections.abc import Iterator

from tf_sparse_attention.data.checksums import DamagedDataError
from tf_sparse_attention.remote_files import RemoteError
from tf_sparse_attention.trainers.shared import console


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark errors of a block, in which settings are checked already, as faults of the program.

    `console.run` then shows their traceback and ends with status 1. Not marked are errors about which a user can do
    something: full or read-only disks, damaged data, addresses that cannot be reached, and errors with an exit status
    of their own.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        is_of_disk = isinstance(error, OSError) and error.errno in console.DISK_ADVICE
        if not (is_of_disk or isinstance(error, DamagedDataError | RemoteError) or hasattr(error, "exit_status")):
            error.is_fault = True  # type: ignore[union-attr]
        raise
