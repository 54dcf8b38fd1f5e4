"""Graceful shutdown on SIGINT (Ctrl-C), SIGTERM (preemption) and SIGHUP (a closed terminal)."""

import os
import signal
from collections.abc import Sequence
from typing import Any, ClassVar, Self


class SignalContext:
    """Base class of contexts in which the first signal calls `on_signal` instead of ending the process.

    A second signal of the same kind ends the process, except SIGHUP: shell and system can each send one. If SIGHUP is
    ignored, as under `nohup`, it stays ignored.

    Attributes:
        received: the first `signal.Signals` that was received, or None.
    """

    # Handler after the first signal of each kind. Windows has no SIGHUP.
    NEXT_HANDLERS: ClassVar[dict[str, Any]] = {
        "SIGINT": signal.default_int_handler,
        "SIGTERM": signal.SIG_DFL,
        "SIGHUP": signal.SIG_IGN,
    }
    MESSAGE = "stopping"  # printed after a signal

    received: signal.Signals | None = None

    def signals_to_handle(self) -> Sequence[signal.Signals]:
        """Return the signals that get a handler."""
        return [getattr(signal, name) for name in self.NEXT_HANDLERS if hasattr(signal, name)]

    def __enter__(self) -> Self:
        numbers = [number for number in self.signals_to_handle() if not _is_ignored(number)]
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        received = signal.Signals(number)
        self.received = self.received or received
        signal.signal(number, self.NEXT_HANDLERS[received.name])
        discard_output_of_closed_terminal()
        advice = "." if received.name == "SIGHUP" else "; send it again to kill the process."
        # Not `print`: the signal may interrupt another `print`.
        os.write(2, f"\n{received.name}: {self.MESSAGE}{advice}\n".encode())
        self.on_signal()

    def on_signal(self) -> None:
        """Handle the first signal of each kind."""


class InterruptOnSignal(SignalContext):
    """Context that raises `KeyboardInterrupt` on each of the signals, so that results so far can be saved.

    If the exception leaves the context, the process exits with the status of the signal.
    """

    @property
    def status(self) -> int:
        """Exit status that shells report for a process that the signal ended. 130 without a signal."""
        return 128 + (self.received or signal.SIGINT)

    def on_signal(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if isinstance(exception[1], KeyboardInterrupt) and self.received is not None:
            raise SystemExit(self.status)


def _is_ignored(number):
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


def discard_output_of_closed_terminal(descriptors: Sequence[int] = (1, 2)) -> None:
    """Redirect output to /dev/null after the terminal closes. Otherwise, a progress bar would raise an error."""
    for descriptor in descriptors:
        try:
            os.write(descriptor, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)
