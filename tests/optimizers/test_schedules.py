"""Learning-rate schedules compared with their formulas, and as Keras objects."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.optimizers import Constant, Noam, RsqrtNormalizedDecay


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


def test_constant_is_the_same_at_every_step():
    np.testing.assert_allclose(rates(Constant(0.5), 0, 1, 10**6), 0.5)


def test_constant_rises_to_its_rate_with_the_last_warmup_step_and_counts_from_one():
    np.testing.assert_allclose(rates(Constant(0.5, warmup_steps=4), 0, 1, 3, 4, 10**6), [0.125, 0.25, 0.5, 0.5, 0.5])


def test_rsqrt_normalized_decay_is_flat_then_halves_with_four_times_the_steps():
    schedule = RsqrtNormalizedDecay(0.01, warmup_steps=100)
    np.testing.assert_allclose(rates(schedule, 0, 50, 100, 400, 1600), [0.01, 0.01, 0.01, 0.005, 0.0025], rtol=1e-6)


def test_linear_warmup_rises_from_zero_to_the_same_peak():
    schedule = RsqrtNormalizedDecay(0.01, warmup_steps=100, use_linear_warmup=True)
    np.testing.assert_allclose(rates(schedule, 0, 50, 100, 400), [0.0, 0.005, 0.01, 0.005], rtol=1e-6)


def test_rsqrt_normalized_decay_defaults_to_the_warmup_of_pg19():
    np.testing.assert_allclose(rates(RsqrtNormalizedDecay(0.01), 10_000, 40_000), [0.01, 0.005], rtol=1e-6)


def test_noam_rises_to_its_peak_at_the_last_warmup_step_and_counts_from_one():
    # The peak is (100 * 4)**-0.5 = 0.05, a quarter of it at the first step and half of it at t = 16.
    np.testing.assert_allclose(rates(Noam(100, warmup_steps=4), 0, 3, 15), [0.0125, 0.05, 0.025], rtol=1e-6)


def test_noam_defaults_to_the_paper_and_multiplies_by_its_scale():
    np.testing.assert_allclose(rates(Noam(512, scale=2.0), 3999), [2 * (512 * 4000) ** -0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [Constant(0.5, 20), RsqrtNormalizedDecay(0.01, 10, use_linear_warmup=True, name="ramp"), Noam(64, 10, scale=0.5)],
)
def test_the_configuration_round_trip_keeps_the_schedule(schedule):
    copy = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert type(copy) is type(schedule)
    assert copy.get_config() == schedule.get_config()
    assert rates(copy, 0, 7, 30) == rates(schedule, 0, 7, 30)


@pytest.mark.parametrize(
    "schedule", [Constant(0.5), Constant(0.5, 8), RsqrtNormalizedDecay(0.5, 10, True), Noam(64, 10)]
)
def test_a_rate_is_a_float32_scalar_for_the_integer_step_of_any_optimizer(schedule):
    optimizer = keras.optimizers.Adam(schedule)
    optimizer.iterations.assign(3)
    rate = schedule(optimizer.iterations)
    assert keras.backend.standardize_dtype(rate.dtype) == "float32"
    assert float(optimizer.learning_rate) == float(schedule(3))


def test_a_wrong_argument_is_refused_by_name(subtests):
    cases = [
        (lambda: Constant(0), "`learning_rate`"),
        (lambda: Constant("fast"), "`learning_rate`"),
        (lambda: RsqrtNormalizedDecay(-1.0), "`peak_learning_rate`"),
        (lambda: RsqrtNormalizedDecay(float("nan")), "`peak_learning_rate`"),
        (lambda: RsqrtNormalizedDecay(0.1, 0), "`warmup_steps`"),
        (lambda: RsqrtNormalizedDecay(0.1, 1.5), "`warmup_steps`"),
        (lambda: Noam(0), "`hidden_dim`"),
        (lambda: Noam(8, True), "`warmup_steps`"),
        (lambda: Noam(8, scale=float("inf")), "`scale`"),
    ]
    for make, message in cases:
        with subtests.test(str(make)), pytest.raises(ValueError, match=message):
            make()
