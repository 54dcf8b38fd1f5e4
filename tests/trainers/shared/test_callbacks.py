"""Callbacks of `fit`: step counts, signals, loss spikes, reports of centroids and spans."""

import functools
import os
import signal

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import callbacks, sampling
from tf_sparse_attention.trainers.shared.callbacks import LossSpikes
from tf_sparse_attention.trainers.shared.devices import OneDevice

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def default_hangups():
    """Set the default handler of SIGHUP. Under nohup, SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Recorder(callbacks.StepCallback):
    def __init__(self, start=0, every=1):
        super().__init__(start)
        self.every, self.calls, self.passed = every, [], []

    def on_steps_end(self, before, logs):
        self.calls.append((before, self.step))
        if self.has_passed(before, self.every):
            self.passed.append(self.step)


def fit(used, num_steps, **compile_arguments):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", run_eagerly=not compile_arguments, **compile_arguments)
    model.fit(np.ones((num_steps, 1)), np.ones((num_steps, 1)), batch_size=1, verbose=0, callbacks=used)


def test_steps_include_those_before_a_resume_and_all_of_an_execution():
    single, several, never = Recorder(start=3, every=2), Recorder(start=2, every=4), Recorder(every=0)
    fit([single, never], num_steps=4)
    assert single.calls == [(3, 4), (4, 5), (5, 6), (6, 7)]
    assert single.passed == [4, 6] and never.passed == []
    fit([several], num_steps=5, steps_per_execution=3)
    assert several.calls == [(2, 5), (5, 7)] and several.passed == [5]


def test_functions_are_called_at_multiples_of_every_and_after_the_last_step():
    called = {3: [], 4: [], 0: []}
    fit([callbacks.CallEvery(1, steps.append, every) for every, steps in called.items()], num_steps=7)
    assert called == {3: [3, 6, 8], 4: [4, 8], 0: []}


def test_a_signal_ends_fit_after_the_running_step(capfd):
    for number in SIGNALS:
        before = signal.getsignal(number)
        with callbacks.StopOnSignal(OneDevice()) as stop:
            kill = functools.partial(os.kill, os.getpid(), number)
            second = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, do=kill: batch == 1 and do())
            fit([second, stop], num_steps=9)
        assert (stop.step, stop.agreed) == (2, number)
        assert signal.getsignal(number) is before
        assert f"{number.name}: stopping after this step" in capfd.readouterr().err


def test_a_second_interrupt_raises_keyboard_interrupt_and_a_second_hangup_is_ignored():
    with callbacks.StopOnSignal(OneDevice()), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1)  # Python runs handlers between two of its own steps.
    with callbacks.StopOnSignal(OneDevice()) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.received == signal.SIGHUP


def test_an_ignored_hangup_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under `nohup`
    with callbacks.StopOnSignal(OneDevice()) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert stop.received is None


def test_a_signal_ends_a_generation_with_the_samples_so_far():
    for number in SIGNALS:
        written = []

        def snapshots(seeds, number=number):
            yield [{"seed": seed, "text": "a"} for seed in seeds]
            if seeds[0] > 0:
                os.kill(os.getpid(), number)
                signal.sigtimedwait([], 1)

        with callbacks.InterruptOnSignal() as stop:
            samples = sampling.draw(snapshots, 10, written.append)
        assert (stop.received, stop.status) == (number, 128 + number)
        assert [sample["interrupted"] for sample in samples] == [False] * 8 + [True] * 2
        assert written[-1] == samples


def test_a_signal_before_the_first_sample_has_its_exit_status():
    with pytest.raises(SystemExit, match="143"), callbacks.InterruptOnSignal():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 1)
    with pytest.raises(KeyError), callbacks.InterruptOnSignal():
        raise KeyError


def test_output_to_a_closed_terminal_is_discarded():
    terminal, descriptor = os.openpty()
    os.close(terminal)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(descriptor, b"text")
    callbacks.discard_output_of_closed_terminal([descriptor])
    assert os.write(descriptor, b"text") == 4
    os.close(descriptor)


def test_a_signal_ends_a_prediction_too():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with callbacks.StopOnSignal(OneDevice()) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        used = [callbacks.StopPrediction(stop)]
        assert len(model.predict(np.ones((9, 1)), batch_size=1, verbose=0, callbacks=used)) == 1


def spikes_after(*groups):
    """Return the scalars of `LossSpikes` after each group of losses. Each group has a running mean of its own."""
    spikes, found = LossSpikes(), []
    for losses in groups:
        for count in range(1, len(losses) + 1):
            spikes.add(float(np.mean(losses[:count])))
        if np.isfinite(losses).all():  # a loss of NaN resets the mean
            spikes.reset_mean()
        found.append(spikes.pop_scalars())
    return found


def test_a_loss_far_above_earlier_losses_is_a_spike():
    calm = np.random.default_rng(0).normal(3.0, 0.1, 60)
    # 3.4 is four deviations above the median.
    assert spikes_after(calm, [3.0, 4.5, 3.1, 3.4], []) == [
        {"loss_peak": pytest.approx(max(calm)), "loss_spikes": 0},
        {"loss_peak": pytest.approx(4.5), "loss_spikes": 1},
        {"loss_spikes": 0},
    ]
    for expected, *groups in [
        ([0, 0], np.linspace(9.0, 2.0, 200), [2.0] * 200 + [2.01]),  # falling losses, and rounding
        ([0, 1], [1.0] * 19 + [50.0], [50.0]),  # the first losses are not compared
        ([0, 0, 1], [1.0] * 20, [float("nan")], [2.0, 1.0]),
    ]:
        assert [scalars["loss_spikes"] for scalars in spikes_after(*groups)] == expected


def test_normalized_entropy_is_one_for_equal_counts_and_zero_for_a_single_used_centroid():
    counts = np.array([[2.0, 2.0, 2.0, 2.0], [5.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    np.testing.assert_allclose(callbacks.normalized_entropy(counts), [1.0, 0.0, 0.5], atol=1e-12)
    assert callbacks.normalized_entropy(np.array([[3.0]])).tolist() == [1.0]  # a single centroid


def test_scalars_of_routing_and_spans_name_each_layer():
    routing = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 4, "cluster_size": 4}
    span = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 32, "adaptive_span": {"ramp": 4}}
    model = tsa.models.LanguageModel(tsa.models.Backbone(8, 2, 4, [routing, span], seed=0))
    second = model.backbone.blocks[1].attention.parts
    second[0]._clusters.unused.assign([[0, 3, 1, 0]])
    second[0]._clusters.counts.assign([[1.0, 0.0, 0.0, 1.0]])
    second[1].span.fraction.assign([0.25, 0.5])
    for scalars, layer, expected in [
        (callbacks.routing_scalars(model), "routing_0", [{"used": 1.0}, {"used": 0.5, "entropy": 0.5}]),
        (callbacks.span_scalars(model), "local_1", [{"mean": 4, "longest": 4}, {"mean": 16, "longest": 20}]),
    ]:
        assert len(scalars) == 4
        names = sorted({name.rsplit("/", 1)[0] for name in scalars})
        assert [name.split("/")[-3:] for name in names] == [[f"block_{at}", "attention", layer] for at in range(2)]
        for name, values in zip(names, expected, strict=True):
            for kind, value in values.items():
                assert scalars[f"{name}/{kind}"] == pytest.approx(value)
