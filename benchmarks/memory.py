"""Peak memory of this process, as the Linux kernel counts it."""

import ctypes
import gc
from pathlib import Path

PROCESS = Path("/proc/self")


def status(name, folder=PROCESS):
    """Return a figure of the process's status in bytes: "VmRSS" (held now), "VmHWM" (the most held)."""
    for line in (folder / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"`name` must be a field of {folder / 'status'}. Received: name={name!r}.")


def available(path=Path("/proc/meminfo")):
    """Return the bytes that a program may still take without swapping, None where the system does not say."""
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def can_measure():
    """Return whether this system can reset and read the peak: Linux, unless a sandbox forbids it."""
    try:
        _reset_peak()
        return status("VmHWM") > 0
    except (OSError, ValueError):
        return False


def peak_above_now(function):
    """Run `function` and returns by how many bytes the process grew at most; what it held before does not count.

    Memory that an allocator kept from earlier calls is reused without growth, so this is right for the FIRST call of
    a size in a process.
    """
    gc.collect()
    _give_back()
    _reset_peak()
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def _reset_peak():
    # "5" sets the peak to what is held now (proc(5), clear_refs).
    (PROCESS / "clear_refs").write_text("5")


def _give_back():
    """Hands free heap back to the system, so that it counts again when it is taken again; glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
