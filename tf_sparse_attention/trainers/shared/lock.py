"""Lock of a run directory, for one training at a time."""

import contextlib
import errno
import os
import pathlib
import socket
import sys
from collections.abc import Iterator
from typing import IO

from absl import logging

FILE_NAME = "train.lock"
# Errors if another process has the lock. Other errors mean that the file system has no locks.
TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextlib.contextmanager
def hold_lock(folder: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a run directory. The lock is released when the process ends, even by a signal.

    The file `train.lock` remains and names the last process with the lock. If the file system has no locks, like some
    network drives, a warning is logged.

    Args:
        folder: run directory.

    Raises:
        ValueError: If another process trains in the folder. The message has the id and the host of the process.
    """
    with open(folder / FILE_NAME, "a+", encoding="utf-8") as file:
        try:
            _lock(file)
        except OSError as error:
            if error.errno in TAKEN:
                file.seek(0)
                raise ValueError(
                    "`workdir` must be a folder in which no other training runs. Wait for that training, or stop it. "
                    f"Received: workdir={folder}, in use by {file.read().strip() or 'another process'}."
                ) from error
            logging.warning("%s cannot be locked (%s). Do not start a second training in this folder.", folder, error)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _lock(file: IO[str]) -> None:
    """Lock an open file until it is closed, without waiting. Raise an `OSError` on failure."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(1 << 20)  # other processes cannot read locked bytes
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
