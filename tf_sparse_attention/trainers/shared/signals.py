"""Signals that end a program in order: SIGINT (Ctrl-C), SIGTERM (preemption) and SIGHUP (a closed terminal)."""

import os
import signal
from collections.abc import Sequence
from typing import Any, ClassVar


class SignalContext:
    """Base of contexts in which a first signal calls `on_signal` instead of ending the process.

    A second signal has its usual effect and ends the process, but for SIGHUP, which shell and system send one after the
    other. SIGHUP that is ignored, as under `nohup`, stays so.

    Attributes:
        first: the first `signal.Signals` that was received, or None.
    """

    # The effect of a second signal of each kind. Windows has no SIGHUP.
    SECOND: ClassVar[dict[str, Any]] = {
        "SIGINT": signal.default_int_handler,
        "SIGTERM": signal.SIG_DFL,
        "SIGHUP": signal.SIG_IGN,
    }
    END = "stopping"  # what the program says it does

    first: signal.Signals | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The signal for which the program ends, or None."""
        return self.first

    def signals_to_handle(self) -> Sequence[signal.Signals]:
        """Return the signals for which handlers are installed."""
        return [getattr(signal, name) for name in self.SECOND if hasattr(signal, name)]

    def __enter__(self):
        numbers = [number for number in self.signals_to_handle() if not _is_ignored(number)]
        self._before = {number: signal.signal(number, self._take) for number in numbers}
        return self

    def __exit__(self, *exception):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number, frame):
        received = signal.Signals(number)
        self.first = self.first or received
        signal.signal(number, self.SECOND[received.name])
        discard_output_of_closed_terminal()
        then = "." if received.name == "SIGHUP" else "; once more kills."
        # A signal may come while `print` writes a line.
        os.write(2, f"\n{received.name}: {self.END}{then}\n".encode())
        self.on_signal()

    def on_signal(self) -> None:
        """Called after a first signal of each kind."""


class InterruptOnSignal(SignalContext):
    """Raises `KeyboardInterrupt` on any of the signals, as Ctrl-C does, so that what there is can be kept.

    If nobody takes it, the block ends with the exit status of the signal.
    """

    @property
    def status(self) -> int:
        """The exit status that a shell reports for a process that the received signal ended; 130 without one."""
        return 128 + (self.received or signal.SIGINT)

    def on_signal(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *exception):
        super().__exit__(*exception)
        if isinstance(exception[1], KeyboardInterrupt) and self.received is not None:
            raise SystemExit(self.status)


def _is_ignored(number):
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


def discard_output_of_closed_terminal(descriptors: Sequence[int] = (1, 2)) -> None:
    """Lets what is written to a terminal that is gone go nowhere: a bar would end the run with an error instead.

    Args:
        descriptors: standard output and standard error, unless told otherwise.
    """
    for descriptor in descriptors:
        try:
            os.write(descriptor, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
