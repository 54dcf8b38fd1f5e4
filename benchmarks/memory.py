"""Peak memory of the current process, from the Linux kernel."""

import ctypes
import gc
from pathlib import Path

PROCESS = Path("/proc/self")


def status(name, folder=PROCESS):
    """Return a field of the process status in bytes: "VmRSS" (current memory) or "VmHWM" (peak memory)."""
    for line in (folder / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"`name` must be a field of {folder / 'status'}. Received: name={name!r}.")


def available(path=Path("/proc/meminfo")):
    """Return the bytes available to programs without swapping, or None if unknown."""
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def can_measure():
    """Return whether the system can reset and read the peak memory: Linux, unless a sandbox forbids it."""
    try:
        _reset_peak()
        return status("VmHWM") > 0
    except (OSError, ValueError):
        return False


def peak_above_now(function):
    """Run `function` and return the peak growth of the process in bytes.

    Memory that an allocator keeps from earlier calls is reused without growth, so the result is correct only for the
    first call of a given size in a process.
    """
    gc.collect()
    _give_back()
    _reset_peak()
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def _reset_peak():
    # "5" sets the peak to the current memory (proc(5), clear_refs).
    (PROCESS / "clear_refs").write_text("5")


def _give_back():
    """Return free heap memory to the system, so that its reuse counts as growth; glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
