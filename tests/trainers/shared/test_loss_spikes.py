"""Loss spikes: steps with a loss far above earlier losses."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.optimizers import GradientNorm
from tf_sparse_attention.trainers.shared.callbacks import LossSpikes, Report


def add_all(spikes, losses):
    for count in range(1, len(losses) + 1):
        spikes.add(float(np.mean(losses[:count])))
    spikes.reset_mean()


def test_a_loss_far_above_earlier_losses_is_a_spike():
    spikes, calm = LossSpikes(), np.random.default_rng(0).normal(3.0, 0.1, 60)
    add_all(spikes, calm)
    assert spikes.pop_scalars() == {"loss_peak": pytest.approx(max(calm)), "loss_spikes": 0}
    add_all(spikes, [3.0, 4.5, 3.1, 3.4])  # 3.4 is four deviations above
    assert spikes.pop_scalars() == {"loss_peak": pytest.approx(4.5), "loss_spikes": 1}
    assert spikes.pop_scalars() == {"loss_spikes": 0}


def test_falling_losses_and_rounding_are_no_spikes():
    spikes = LossSpikes()
    add_all(spikes, np.linspace(9.0, 2.0, 200))
    add_all(spikes, [2.0] * 200 + [2.01])
    assert spikes.pop_scalars()["loss_spikes"] == 0


def test_the_first_losses_are_no_spikes():
    spikes = LossSpikes()
    add_all(spikes, [1.0] * 19 + [50.0])
    assert spikes.pop_scalars() == {"loss_peak": pytest.approx(50.0), "loss_spikes": 0}
    add_all(spikes, [50.0])
    assert spikes.pop_scalars()["loss_spikes"] == 1


def test_a_loss_that_is_not_finite_is_ignored():
    spikes = LossSpikes()
    add_all(spikes, [1.0] * 20)
    spikes.add(float("nan"))  # resets the mean
    add_all(spikes, [2.0, 1.0])
    assert spikes.pop_scalars() == {"loss_peak": pytest.approx(2.0), "loss_spikes": 1}


class MeasuredSGD(GradientNorm, keras.optimizers.SGD):
    """Optimizer with a gradient norm, as in training."""


class Kept(list):
    """Writer that records scalars."""

    def progress(self, step, loss):
        pass

    def write(self, step, scalars):
        self.append((step, scalars))


def test_a_report_has_the_spikes_of_single_steps():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(MeasuredSGD(0.0), loss="mse")
    losses = np.ones((60, 1))
    losses[33], losses[52] = 16.0, 9.0
    written = Kept()
    report = Report(0, [written], 20, 1)
    model.fit(np.ones((60, 1)), np.sqrt(losses), batch_size=1, verbose=0, shuffle=False, callbacks=[report])
    found = [(step, scalars["loss_peak"], scalars["loss_spikes"]) for step, scalars in written]
    assert found == [
        (20, pytest.approx(1), 0),
        (40, pytest.approx(16, rel=1e-5), 1),
        (60, pytest.approx(9, rel=1e-5), 1),
    ]
