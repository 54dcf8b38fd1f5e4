"""A program of the trainers to which something happens while it writes: `python -m benchmarks.faults.hooked train ...`.

The variable FAULT says what:

- "record": the names of files that it opens for writing are appended to the file FAULT_LOG.
- "full": once it opens a file whose name matches FAULT_FILE, nothing more can be written, as on a full disk.
- "kill": once it opens such a file, it is killed as soon as more than FAULT_BYTES bytes are in one.
- "address": nothing, but addresses disk://FOLDER are folders of the local disk.
- "no rights": the rights of root are given up, so that folders without write permission cannot be written.

FAULT_NUMBER is the number of the file among those that match, from 0. "full" and "kill" limit the size of files, so
that writers in C++ are stopped too; the system then reports a file that is too large, where a full disk has no space
left.
"""

import ctypes
import fnmatch
import itertools
import os
import resource
import runpy
import signal
import sys

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CAPABILITY_VERSION = 0x20080522  # the third, of two words a set


def names_of_opened(event: str, arguments: tuple) -> list[str]:
    """Returns the full path of what an audit event of Python opens for writing, in a list; of other events none."""
    if event != "open" or isinstance(arguments[0], int) or arguments[0] is None or not arguments[2] & WRITING:
        return []
    path = os.path.abspath(os.fsdecode(arguments[0]))
    return [] if path.startswith("/dev/") else [path]


def record(log: str) -> None:
    """Appends the paths of files that are opened for writing to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event, arguments):
        for name in names_of_opened(event, arguments):
            os.write(descriptor, f"{name}\n".encode())

    sys.addaudithook(note)


def limit_at(pattern: str, number: int, num_bytes: int) -> None:
    """Lets no file grow beyond some bytes once file `number`, from 0, of those of a pattern is opened for writing."""
    count = itertools.count()

    def limit(event, arguments):
        for name in names_of_opened(event, arguments):
            if fnmatch.fnmatch(name, pattern) and next(count) == number:
                resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    sys.addaudithook(limit)


def give_up_rights() -> None:
    """Gives up what root may do beyond the permissions of files."""
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def main() -> None:
    """Sets the fault up and runs the program that is named first."""
    fault = os.environ["FAULT"]
    if fault == "record":
        record(os.environ["FAULT_LOG"])
    elif fault == "no rights":
        give_up_rights()
    elif fault == "address":
        from tests import remote_paths  # noqa: F401  # registers disk://
    else:
        if fault == "kill":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores
        limit_at(
            os.environ["FAULT_FILE"], int(os.environ.get("FAULT_NUMBER", 0)), int(os.environ.get("FAULT_BYTES", 0))
        )
    name = f"tf_sparse_attention.trainers.{sys.argv.pop(1)}"
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
