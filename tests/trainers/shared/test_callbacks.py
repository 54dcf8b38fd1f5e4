"""Callbacks of `fit`: counting steps, stopping on a signal, reports of centroids and spans."""

import os
import signal

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import callbacks, sampling, signals
from tf_sparse_attention.trainers.shared.devices import OneDevice


@pytest.fixture(autouse=True)
def default_hangups():
    """Set the default handler of SIGHUP. Under nohup, SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Recorder(callbacks.StepCallback):
    """Callback that records its calls."""

    def __init__(self, start=0, every=1):
        super().__init__(start)
        self.every, self.calls, self.passed = every, [], []

    def on_steps_end(self, before, logs):
        self.calls.append((before, self.step))
        if self.has_passed(before, self.every):
            self.passed.append(self.step)


def fit(callback, num_steps, **compile_arguments):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", **compile_arguments)
    model.fit(np.ones((num_steps, 1)), np.ones((num_steps, 1)), batch_size=1, verbose=0, callbacks=[callback])
    return model


def test_steps_include_those_before_a_resume():
    recorder = Recorder(start=3, every=2)
    fit(recorder, num_steps=4)
    assert recorder.calls == [(3, 4), (4, 5), (5, 6), (6, 7)]
    assert recorder.passed == [4, 6]


def test_executions_of_several_steps_count_all_steps_up_to_the_end_of_fit():
    recorder = Recorder(start=2, every=4)
    fit(recorder, num_steps=5, steps_per_execution=3)
    assert recorder.calls == [(2, 5), (5, 7)]
    assert recorder.passed == [5]


def test_zero_steps_between_calls_means_never():
    recorder = Recorder(every=0)
    fit(recorder, num_steps=3)
    assert recorder.passed == []


def test_checkpoints_are_saved_at_multiples_of_every():
    saved = []
    fit(callbacks.SaveCheckpoints(1, saved.append, every=3), num_steps=8)
    assert saved == [3, 6, 9]


@pytest.mark.parametrize(("every", "steps"), [(3, [3, 6, 8]), (4, [4, 8]), (0, [])])
def test_validation_runs_at_multiples_of_every_and_after_the_last_step(every, steps):
    validated = []
    fit(callbacks.Validate(1, validated.append, every), num_steps=7)
    assert validated == steps


class Kick(Recorder):
    """Callback that sends a signal to this process after a step."""

    def __init__(self, step, number):
        super().__init__()
        self.at, self.number = step, number

    def on_steps_end(self, before, logs):
        if self.step == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_fit_after_the_running_step(number, capfd):
    before = signal.getsignal(number)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    with callbacks.StopOnSignal(OneDevice()) as stop:
        kick = Kick(2, number)
        model.fit(np.ones((9, 1)), np.ones((9, 1)), batch_size=1, verbose=0, callbacks=[kick, stop])
    assert (stop.step, stop.agreed) == (2, number)
    assert signal.getsignal(number) is before
    assert f"{number.name}: stopping after this step" in capfd.readouterr().err


def test_a_second_interrupt_raises_keyboard_interrupt():
    with callbacks.StopOnSignal(OneDevice()), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1)  # Python runs handlers between two of its own steps.


def test_a_second_hangup_is_ignored():
    with callbacks.StopOnSignal(OneDevice()) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.received == signal.SIGHUP


def test_an_ignored_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under `nohup`
    try:
        with callbacks.StopOnSignal(OneDevice()) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_generation_with_the_samples_so_far(number):
    written = []

    def snapshots(numbers):
        yield [{"seed": seed, "text": "a"} for seed in numbers]
        if numbers[0] > 0:
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 1)

    with signals.InterruptOnSignal() as stop:
        samples = sampling.draw(snapshots, 10, written.append)
    assert (stop.received, stop.status) == (number, 128 + number)
    assert [sample["interrupted"] for sample in samples] == [False] * 8 + [True] * 2
    assert written[-1] == samples


def test_a_signal_before_the_first_sample_has_its_exit_status():
    with pytest.raises(SystemExit, match="143"), signals.InterruptOnSignal():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 1)
    with pytest.raises(KeyError), signals.InterruptOnSignal():
        raise KeyError


def test_output_to_a_closed_terminal_is_discarded():
    terminal, descriptor = os.openpty()
    os.close(terminal)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(descriptor, b"text")
    signals.discard_output_of_closed_terminal([descriptor])
    assert os.write(descriptor, b"text") == 4
    os.close(descriptor)


def test_a_signal_ends_a_prediction_too():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with callbacks.StopOnSignal(OneDevice()) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (
            len(model.predict(np.ones((9, 1)), batch_size=1, verbose=0, callbacks=[callbacks.StopPrediction(stop)]))
            == 1
        )


def test_normalized_entropy_is_one_for_equal_counts_and_zero_for_a_single_used_centroid():
    counts = np.array([[2.0, 2.0, 2.0, 2.0], [5.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    np.testing.assert_allclose(callbacks.normalized_entropy(counts), [1.0, 0.0, 0.5], atol=1e-12)


def test_normalized_entropy_of_a_single_centroid_is_one():
    assert callbacks.normalized_entropy(np.array([[3.0]])).tolist() == [1.0]


def test_routing_scalars_name_each_layer_and_count_its_used_centroids():
    part = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 4, "cluster_size": 4}
    model = tsa.models.LanguageModel(tsa.models.Backbone(8, 2, 4, [part], seed=0))
    clusters = model.backbone.blocks[1].attention.parts[0]._clusters
    clusters.unused.assign([[0, 3, 1, 0]])
    clusters.counts.assign([[1.0, 0.0, 0.0, 1.0]])
    scalars = callbacks.routing_scalars(model)
    assert len(scalars) == 4
    names = sorted({name.rsplit("/", 1)[0] for name in scalars})
    assert [name.split("/")[-3:] for name in names] == [["block_0", "attention", "routing_0"]] + [
        ["block_1", "attention", "routing_0"]
    ]
    assert scalars[f"{names[1]}/used"] == 0.5
    assert scalars[f"{names[1]}/entropy"] == pytest.approx(0.5)
    assert scalars[f"{names[0]}/used"] == 1.0


def test_span_scalars_name_each_layer_and_count_positions():
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 32, "adaptive_span": {"ramp": 4}}
    model = tsa.models.LanguageModel(tsa.models.Backbone(8, 2, 4, [part], seed=0))
    model.backbone.blocks[1].attention.parts[0].span.fraction.assign([0.25, 0.5])
    scalars = callbacks.span_scalars(model)
    names = sorted({name.rsplit("/", 1)[0] for name in scalars})
    assert [name.split("/")[-3:] for name in names] == [
        ["block_0", "attention", "local_0"],
        ["block_1", "attention", "local_0"],
    ]
    assert [scalars[f"{names[0]}/{what}"] for what in ("mean", "longest")] == [4, 4]
    assert [scalars[f"{names[1]}/{what}"] for what in ("mean", "longest")] == [16, 20]
