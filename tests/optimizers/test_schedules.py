"""Learning-rate schedules compared with their formulas, and as Keras objects."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.optimizers import Constant, Noam, RsqrtNormalizedDecay


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(0.5), {0: 0.5, 1: 0.5, 10**6: 0.5}),
        # Warm-up of these counts from one.
        (Constant(0.5, warmup_steps=4), {0: 0.125, 1: 0.25, 3: 0.5, 4: 0.5, 10**6: 0.5}),
        # Flat, then half with four times the steps.
        (RsqrtNormalizedDecay(0.01, warmup_steps=100), {0: 0.01, 50: 0.01, 100: 0.01, 400: 0.005, 1600: 0.0025}),
        (RsqrtNormalizedDecay(0.01, 100, use_linear_warmup=True), {0: 0.0, 50: 0.005, 100: 0.01, 400: 0.005}),
        (RsqrtNormalizedDecay(0.01), {10_000: 0.01, 40_000: 0.005}),  # as for PG-19
        # The peak is (100 * 4)**-0.5 = 0.05, a quarter of it at the first step and half of it at t = 16.
        (Noam(100, warmup_steps=4), {0: 0.0125, 3: 0.05, 15: 0.025}),
        (Noam(512, scale=2.0), {3999: 2 * (512 * 4000) ** -0.5}),
    ],
)
def test_rates_are_those_of_the_formula(schedule, expected):
    np.testing.assert_allclose(rates(schedule, *expected), list(expected.values()), rtol=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [Constant(0.5, 20), RsqrtNormalizedDecay(0.01, 10, use_linear_warmup=True, name="ramp"), Noam(64, 10, scale=0.5)],
)
def test_the_configuration_round_trip_keeps_the_schedule(schedule):
    copy = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert type(copy) is type(schedule)
    assert copy.get_config() == schedule.get_config()
    assert rates(copy, 0, 7, 30) == rates(schedule, 0, 7, 30)


@pytest.mark.parametrize("schedule", [Constant(0.5, 8), RsqrtNormalizedDecay(0.5, 10, True), Noam(64, 10)])
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
