"""The lock of a work folder: one training at a time."""

import contextlib
import errno
import os
import pathlib
import socket
import sys
from collections.abc import Iterator
from typing import IO

from absl import logging

NAME = "train.lock"
# What the system says where another process has the lock; anything else means that locks do not work there.
TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a work folder, which ends with the process, however that ends.

    The file `train.lock` stays behind and says which process had it last. Where the file system has no locks, as some
    network drives, a warning says so.

    Args:
        folder: the work folder.

    Raises:
        ValueError: If another process trains in the folder, with its number and host.
    """
    with open(folder / NAME, "a+", encoding="utf-8") as file:
        try:
            _lock(file)
        except OSError as error:
            if error.errno in TAKEN:
                file.seek(0)
                raise ValueError(
                    "`workdir` must be a folder in which no other training runs; wait for it, or end it. "
                    f"Received: workdir={folder}, where {file.read().strip() or 'a process'} trains."
                ) from error
            logging.warning("%s cannot be locked (%s): start no other training in this folder.", folder, error)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _lock(file: IO[str]) -> None:
    """Locks an open file without waiting, until it is closed; an `OSError` if that cannot be."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(1 << 20)  # bytes that are locked cannot be read by others
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
