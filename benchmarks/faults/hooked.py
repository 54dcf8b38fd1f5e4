"""Trainer command with an injected fault: `python -m benchmarks.faults.hooked train ...`.

The environment variable FAULT selects the fault:

- "record": no fault. The paths of files that are opened for writing are appended to the file FAULT_LOG.
- "full": after a file that matches FAULT_FILE is opened, all writes fail, as on a full disk.
- "kill": after a file that matches FAULT_FILE is opened, a write beyond FAULT_BYTES bytes of a file kills the process.
- "address": no fault. Addresses disk://FOLDER are folders of the local disk.
- "no rights": the process drops root's capabilities, so that it cannot write to read-only folders.

FAULT_NUMBER is the index of the file among matching files, from 0. "full" and "kill" limit the file size, which also
stops writers in C++. The operating system then reports a file that is too large, unlike a full disk.
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
CAPABILITY_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two 32-bit words per set


def names_of_opened(event: str, arguments: tuple) -> list[str]:
    """Return [path] of the file that an audit event opens for writing, or [] for other events."""
    if event != "open" or isinstance(arguments[0], int) or arguments[0] is None or not arguments[2] & WRITING:
        return []
    path = os.path.abspath(os.fsdecode(arguments[0]))
    return [] if path.startswith("/dev/") else [path]


def record(log: str) -> None:
    """Append the paths of files that are opened for writing to the file `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event, arguments):
        for name in names_of_opened(event, arguments):
            os.write(descriptor, f"{name}\n".encode())

    sys.addaudithook(note)


def limit_at(pattern: str, number: int, num_bytes: int) -> None:
    """Limit the size of all files after the file `number`, from 0, that matches `pattern` is opened for writing."""
    count = itertools.count()

    def limit(event, arguments):
        for name in names_of_opened(event, arguments):
            if fnmatch.fnmatch(name, pattern) and next(count) == number:
                resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    sys.addaudithook(limit)


def give_up_rights() -> None:
    """Drop the capabilities of root, such as bypassing file permissions."""
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def main() -> None:
    """Set up the fault, and run the trainer command named by the first argument."""
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
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores this signal by default
        limit_at(
            os.environ["FAULT_FILE"], int(os.environ.get("FAULT_NUMBER", 0)), int(os.environ.get("FAULT_BYTES", 0))
        )
    name = f"tf_sparse_attention.trainers.{sys.argv.pop(1)}"
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
