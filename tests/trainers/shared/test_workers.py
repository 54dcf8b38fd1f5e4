"""The processes of a run stop together, and end where one of them is gone. Here they are threads."""

import queue
import signal
import threading
import time

import pytest

from tf_sparse_attention.trainers.shared import callbacks, console, workers

COUNT = 3


class Devices:
    """What `Workers` asks of the devices of one of three processes."""

    is_single_process, num_processes, chief_host = False, COUNT, "localhost"

    def __init__(self, index, told):
        self.process_index, self._told = index, told

    def from_chief(self, values):
        if self.process_index == 0:
            for _ in range(COUNT - 1):
                self._told.put(values)
            return values
        return self._told.get()


@pytest.fixture
def ended(monkeypatch):
    """The reasons for which processes end themselves, as a queue."""
    reasons = queue.Queue()
    monkeypatch.setattr(workers, "end_process", lambda reason, status: reasons.put((reason, status)))
    monkeypatch.setattr(workers, "GRACE_GONE", 0.05)
    return reasons


@pytest.fixture
def connect(ended):
    """Function that connects a process of each of some classes and returns them."""
    made = []

    def make(classes):
        told = queue.Queue()
        made.extend(one_class(Devices(index, told)) for index, one_class in enumerate(classes))
        return made

    yield make
    for worker in made:
        worker.leave("bye")


@pytest.fixture
def three(connect):
    return connect([workers.Workers] * COUNT)


def run(worker, most, steps, barrier):
    """Does steps, each together with the others, until all stop; notes how many."""
    while steps.get(worker, 0) < most and worker.agreed is None:
        worker.begin()
        barrier.wait(10)
        steps[worker] = steps.get(worker, 0) + 1


def run_all(three, most, asks=None):
    steps, barrier = {}, threading.Barrier(COUNT)
    threads = [threading.Thread(target=run, args=(worker, most, steps, barrier)) for worker in three]
    for thread in threads:
        thread.start()
    if asks is not None:
        three[asks].ask_to_stop(signal.SIGTERM)
    for thread in threads:
        thread.join(20)
    return [steps[worker] for worker in three]


@pytest.mark.parametrize("asks", [0, 2])
def test_all_stop_after_the_same_step_where_one_was_asked_to(three, asks):
    counts = run_all(three, 10**6, asks)
    assert len(set(counts)) == 1 and counts[0] < 10**6
    assert [worker.agreed for worker in three] == [signal.SIGTERM] * COUNT


def test_a_run_that_ends_first_ends_in_all(three):
    assert run_all(three, 2) == [2] * COUNT
    three[0].leave("bye")
    three[1].ask_to_stop(signal.SIGTERM)
    for worker in three[1:]:
        worker.begin()
        assert worker.agreed is None


class Dying(workers.Workers):
    """One that connects and is gone."""

    def _watch(self):
        while not self._connections and len(self._accepted) < COUNT - 1:
            time.sleep(0.01)
        for connection in [*self._connections.values(), *self._accepted.values()]:
            connection.close()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_process_that_is_gone_ends_the_others(connect, ended, gone):
    connect(Dying if index == gone else workers.Workers for index in range(COUNT))
    reasons = [ended.get(timeout=5) for _ in range(COUNT - 1)]
    assert reasons == [(f"worker {gone} of 3 is gone: its connection ended", None)] * (COUNT - 1)


def test_a_process_that_says_nothing_ends_the_others(connect, monkeypatch, ended):
    monkeypatch.setattr(workers, "SILENCE", 0.0)
    monkeypatch.setattr(workers, "BEAT", 0.1)
    connect([workers.Workers])
    assert "of 3 is gone: it was silent for 0 seconds" in ended.get(timeout=5)[0]


def test_an_error_of_one_gives_the_others_time_for_theirs(three, ended, monkeypatch):
    monkeypatch.setattr(workers, "GRACE_FAILED", 0.2)
    three[2].leave("failed", 7)
    assert ended.get(timeout=5) == ("worker 2 of 3 is gone: it ended with an error", None)
    three[0]._connections[2].close()  # as the end of the first process does
    assert ended.get(timeout=5) == ("worker 0 of 3 is gone: its connection ended", 7)


def test_the_exit_status_is_in_the_table_of_the_programs():
    assert workers.LOST in console.EXIT_STATUSES


def test_a_signal_of_a_run_of_several_processes_asks_all():
    class Others:
        agreed, asked = None, []

        def ask_to_stop(self, number):
            self.asked.append(number)

    with callbacks.StopOnSignal(Others()) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (stop.received, Others.asked) == (None, [signal.SIGTERM])
