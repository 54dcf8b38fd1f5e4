"""What the processes of one run tell each other beside the training: that they live, and when they stop together.

A collective waits for ever for a process that is gone. So every process has a thread that is connected to the first
one, the chief, and that ends its own process where another one is missing. The chief also finds the step after which
all of them stop where one of them was asked to.
"""

import contextlib
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener, Pipe, wait
from typing import Any

from tf_sparse_attention.trainers.shared import console

LOST = 5  # exit status
BEAT, SILENCE = 5.0, 40.0  # seconds between signs of life, and without one until a process counts as gone
# Seconds until a process ends itself, in which an error of its own, which all of them may have, can be printed.
GRACE_GONE, GRACE_FAILED = 0.5, 10.0
KEY_SIZE, HOST_SIZE = 16, 255  # bytes


@contextlib.contextmanager
def connected(devices: Any) -> Iterator["Workers | None"]:
    """Connects the processes of a run during a `with` block. None in a run of a single process.

    Args:
        devices: from `strategy.choose_devices`, in whose scope this is.
    """
    if devices.is_single_process:
        yield None
        return
    workers = Workers(devices)
    try:
        yield workers
    except BaseException as error:
        workers.leave("failed", console.exit_status(error))
        raise
    workers.leave("bye")


class Workers:
    """The connections of this process to the others: of the chief to each, of each other one to the chief.

    Progress is counted in executions, of training or of an evaluation, which all processes begin in the same order.

    Args:
        devices: see `connected`.
    """

    def __init__(self, devices: Any) -> None:
        self._index, self._number = devices.process_index, devices.num_processes
        others = range(1, self._number) if self._index == 0 else [0]
        self._heard = dict.fromkeys(others, time.monotonic())  # those who have not left
        self._connections: dict[int, Any] = {}
        self._accepted: dict[int, Any] = {}  # by a thread of its own
        self._changed = threading.Condition()  # of the next four
        self._begun, self._is_frozen = 0, False
        self._stop_after: int | None = None
        self._signal: signal.Signals | None = None
        self._answers: dict[int, int] = {}  # of the chief: how far those are that it has asked
        self._missing: tuple[int, str] | None = None  # who is gone, and why
        self._own_status: int | None = None  # of an error here
        self._end: tuple[float, str] | None = None  # when to end this process, and why
        self._inbox, self._outbox = Pipe(duplex=False)  # from the main thread to the watching one
        self._meet(devices)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Must be called before each execution; waits while the processes agree on when to stop."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_frozen)
            self._begun += 1

    def ask_to_stop(self, number: int) -> None:
        """Asks all processes to stop after a common execution because of a signal. May be called by its handler."""
        self._tell_thread("stop", number)

    @property
    def agreed(self) -> signal.Signals | None:
        """The signal that all processes stop for after the last execution, in each of them the same, or None."""
        with self._changed:
            return self._signal if self._stop_after is not None and self._begun > self._stop_after else None

    def leave(self, how: str, status: int | None = None) -> None:
        """Ends the connections.

        Args:
            how: "bye", or "failed" with an error, in which case this waits a moment for the news that a process is
                gone, which ends this one.
            status: of this process because of its error. It has it also where a backend, at its exit, waits for
                others that are gone by then.
        """
        self._tell_thread(how)
        self._thread.join(timeout=4 * GRACE_GONE if how == "failed" else None)
        self._own_status = status

    def _tell_thread(self, *message):
        self._outbox.send_bytes(json.dumps(message).encode())

    def _meet(self, devices):
        """Connects to the chief, which has told the others by a collective where it listens, and a key."""
        if self._index == 0:
            key = secrets.token_bytes(KEY_SIZE)
            listener = Listener(("", 0), authkey=key)
            address = listener.address[1].to_bytes(2, "big") + key + devices.chief_host.encode()
            devices.from_chief(list(address.ljust(2 + KEY_SIZE + HOST_SIZE, b"\0")))
            threading.Thread(target=self._accept, args=[listener], daemon=True).start()
            return
        told = bytes(devices.from_chief([0] * (2 + KEY_SIZE + HOST_SIZE)))
        host, key = told[2 + KEY_SIZE :].rstrip(b"\0").decode(), told[2 : 2 + KEY_SIZE]
        self._connections[0] = Client((host, int.from_bytes(told[:2], "big")), authkey=key)
        self._connections[0].send_bytes(json.dumps(self._index).encode())

    def _accept(self, listener):
        """Waits for all others to connect; who does not is found silent."""
        with listener:
            while len(self._accepted) < self._number - 1:
                with contextlib.suppress(AuthenticationError, EOFError, OSError):  # of who does not belong here
                    connection = listener.accept()
                    index = json.loads(connection.recv_bytes())
                    self._accepted[index] = connection
                    self._tell_thread("accepted", index)

    def _on_accepted(self, index, other):
        self._connections[other] = self._accepted[other]
        if self._answers and self._stop_after is None:
            self._send(other, "freeze")
        if self._missing:
            self._send(other, "gone", *self._missing)

    def _send(self, index, *message):
        with contextlib.suppress(OSError):  # It is gone, which reading finds.
            self._connections[index].send_bytes(json.dumps(message).encode())

    def _send_all(self, *message):
        for index in self._listening():
            self._send(index, *message)

    def _listening(self):
        """Returns those who are connected and have not left."""
        return [index for index in self._connections if index in self._heard]

    def _watch(self):
        """The body of the thread."""
        next_beat = 0.0
        while True:
            sources: dict[Any, int] = {self._inbox: self._index}
            sources |= {self._connections[index]: index for index in self._listening()}
            for source in wait(list(sources), timeout=GRACE_GONE / 2 if self._end else BEAT / 2):
                if self._receive(source, sources[source]) == "bye" and source is self._inbox:
                    return
            if self._end and time.monotonic() >= self._end[0]:
                end_process(self._end[1], self._own_status)
                return
            if time.monotonic() >= next_beat:
                self._send_all("beat")
                next_beat = time.monotonic() + BEAT
            self._check_silence()

    def _check_silence(self):
        now = time.monotonic()
        for index in [index for index, heard in self._heard.items() if now - heard > SILENCE]:
            self._gone(index, f"it was silent for {SILENCE:.0f} seconds")

    def _receive(self, source, index):
        """Reads a message, of the main thread if `index` is this process, and acts on it. Returns what it is about."""
        try:
            what, *values = json.loads(source.recv_bytes())
        except (EOFError, OSError):
            self._gone(index, "its connection ended")
            return "gone"
        if index in self._heard:
            self._heard[index] = time.monotonic()
        if what in ("bye", "failed"):
            self._leave(index, what)
        elif what != "beat":
            getattr(self, f"_on_{what}")(index, *values)
        return what

    def _leave(self, index, how):
        if index == self._index:
            self._send_all(how)
            return
        del self._heard[index]
        if how == "failed":
            self._end_in(GRACE_FAILED, index, "it ended with an error")
        elif index == 0:
            self._resume()  # There is nothing left to stop.
        self._decide()

    def _gone(self, index, why):
        del self._heard[index]
        self._missing = index, why
        self._send_all("gone", index, why)
        # JAX aborts other processes at once where the first one is gone.
        self._end_in(GRACE_GONE if index else 0.0, index, why)

    def _on_gone(self, index, gone, why):
        if gone != self._index:
            self._end_in(GRACE_GONE, gone, why)

    def _end_in(self, seconds, index, why):
        end = time.monotonic() + seconds
        if self._end is None or end < self._end[0]:
            self._end = end, f"worker {index} of {self._number} is gone: {why}"

    def _on_stop(self, index, number):
        if self._index != 0:
            self._send(0, "stop", number)
        elif not self._answers:
            self._signal = signal.Signals(number)
            self._send_all("freeze")
            self._answers = {0: self._freeze()}
            self._decide()

    def _on_freeze(self, index):
        self._send(0, "at", self._freeze())

    def _freeze(self):
        with self._changed:
            self._is_frozen = True
            return self._begun

    def _on_at(self, index, begun):
        self._answers[index] = begun
        self._decide()

    def _decide(self):
        """Lets all stop after the execution that follows the last one that any has begun.

        Not after that one itself: who has ended it may have found already that there is no reason to stop.
        """
        if not self._answers or self._stop_after is not None or not self._answers.keys() >= self._heard.keys():
            return
        furthest = max(self._answers.values())
        self._send_all("resume", furthest, self._signal)
        self._on_resume(0, furthest, self._signal)

    def _on_resume(self, index, stop_after, number):
        with self._changed:
            self._stop_after, self._signal = stop_after, signal.Signals(number)
        self._resume()

    def _resume(self):
        with self._changed:
            self._is_frozen = False
            self._changed.notify_all()


def end_process(reason: str, status: int | None = None) -> None:
    """Ends this process at once, from any thread: the main one may wait for ever for a process that is gone.

    Args:
        reason: why, which is printed with what to do.
        status: of an error that is printed already. Default: None, there is no other reason.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if status is None:
        advice = "Start all workers again with their commands: the run goes on from its last checkpoint."
        with contextlib.suppress(OSError):
            os.write(2, f"error: {reason}. {advice}\n".encode())
    os._exit(LOST if status is None else status)
