"""Adafactor compared with the published implementation and the update rule in NumPy, and its edge cases."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.draws import draws, first
from tf_sparse_attention.optimizers import Adafactor, RsqrtNormalizedDecay
from tf_sparse_attention.optimizers.adafactor import second_moment_decay

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "adafactor.npz", allow_pickle=False)
CASES = json.loads(str(GOLDEN["meta_json"]))


def make_optimizer(case):
    meta = CASES[case]
    schedule = RsqrtNormalizedDecay(meta["constant"], meta["warmup"], use_linear_warmup="linear" in meta["schedule"])
    options = {"beta_1": meta["beta1"], "decay_power": meta["memory_exponent"], "clip_threshold": meta["clipping"]}
    options |= {"parameter_scale_floor": meta["epsilon2"], "epsilon": meta["epsilon1"], "matrix_view": "last_two"}
    scaled = meta["multiply_by_parameter_scale"]
    optimizer = Adafactor(schedule, multiply_by_parameter_scale=scaled, **options)
    optimizer.iterations.assign(meta["start_step"])
    return optimizer


def get_slots(optimizer, name):
    """The state of one variable by the name it has in the goldens: vr, vc, v, m."""
    names = {"row_moment": "vr", "column_moment": "vc", "second_moment": "v", "momentum": "m"}
    return {names[v.name.removeprefix(f"{name}_")]: v for v in optimizer.variables if v.name.startswith(f"{name}_")}


@pytest.mark.parametrize("case", first(list(CASES), 6))
def test_every_step_equals_the_published_one(case):
    variables = {name: keras.Variable(GOLDEN[f"{case}/w0/{name}"], name=name) for name in CASES[case]["shapes"]}
    optimizer = make_optimizer(case)
    atol = 1e-5 if case == "recipe_big_lr" else 1e-6
    for step in range(CASES[case]["steps"]):
        np.testing.assert_allclose(float(optimizer.learning_rate), GOLDEN[f"{case}/lr"][step], rtol=1e-6)
        decay = float(second_moment_decay(optimizer.iterations, CASES[case]["memory_exponent"]))
        np.testing.assert_allclose(decay, GOLDEN[f"{case}/decay_rate"][step], rtol=1e-6)
        gradients = [keras.ops.convert_to_tensor(GOLDEN[f"{case}/g{step + 1}/{name}"]) for name in variables]
        optimizer.apply(gradients, list(variables.values()))
        for name, variable in variables.items():
            np.testing.assert_allclose(variable.numpy(), GOLDEN[f"{case}/w{step + 1}/{name}"], rtol=0, atol=atol)
            slots = get_slots(optimizer, name)
            expected = {key for key in ("vr", "vc", "v", "m") if f"{case}/{key}{step + 1}/{name}" in GOLDEN}
            assert set(slots) == expected
            for key, slot in slots.items():
                # The momentum sums terms of both signs: rounding is relative to the terms (3e-3), not to their sum.
                golden, slot_atol = GOLDEN[f"{case}/{key}{step + 1}/{name}"], 1e-9 if key == "m" else 0
                np.testing.assert_allclose(slot.numpy(), golden, rtol=1e-5, atol=slot_atol)


class Oracle:
    """The update rule in float64 on explicit matrices, a weight of rank >= 2 cut where the two sides are least."""

    def __init__(self, learning_rate, beta_1, clip_threshold, multiply_by_parameter_scale):
        self.learning_rate, self.beta_1, self.clip_threshold = learning_rate, beta_1, clip_threshold
        self.scaled = multiply_by_parameter_scale
        self.row = self.column = self.full = self.momentum = 0.0

    def update(self, weight, gradient, step):
        keep = 1.0 - (step + 1.0) ** -0.8
        squares = gradient.astype("float64") ** 2 + 1e-30
        if weight.ndim < 2:
            self.full = keep * self.full + (1 - keep) * squares
            moment = self.full
        else:
            sides = [(np.prod(weight.shape[:cut]), np.prod(weight.shape[cut:])) for cut in range(1, weight.ndim)]
            matrix = squares.reshape(min(sides, key=sum))
            self.row = keep * self.row + (1 - keep) * matrix.mean(axis=1)
            self.column = keep * self.column + (1 - keep) * matrix.mean(axis=0)
            moment = (np.outer(self.row, self.column) / self.row.mean()).reshape(weight.shape)
        direction = gradient / np.sqrt(moment)
        if self.clip_threshold is not None:
            direction = direction / max(1.0, np.sqrt(np.mean(direction**2)) / self.clip_threshold)
        scale = max(1e-3, np.sqrt(np.mean(weight**2))) if self.scaled else 1.0
        self.momentum = self.beta_1 * self.momentum + (1 - self.beta_1) * self.learning_rate * scale * direction
        return weight - self.momentum


@draws(8, 25)
@given(
    shape=st.lists(st.integers(1, 5), max_size=4).map(tuple),
    beta_1=st.sampled_from([0.0, 0.9]),
    clip_threshold=st.sampled_from([None, 0.5, 1.0]),
    multiply_by_parameter_scale=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_smallest_view_equals_the_rule_on_explicit_matrices(shape, seed, **arguments):
    random = np.random.default_rng(seed)
    variable = keras.Variable(random.normal(size=shape).astype("float32"))
    optimizer, oracle = Adafactor(0.1, **arguments), Oracle(0.1, **arguments)
    expected = variable.numpy().astype("float64")
    for step in range(3):
        gradient = random.normal(size=shape).astype("float32")
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        expected = oracle.update(expected, gradient, step)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=2e-6)


def test_a_matrix_stores_its_two_factors_and_nothing_else():
    for shape, arguments, numbers in [
        ((1032, 8, 129), {}, 2064),
        ((1032, 8, 129), {"matrix_view": "last_two"}, 141_384),
        ((1032, 4096), {"matrix_view": "last_two"}, 5128),
        ((4096,), {}, 4096),
        ((10, 20), {"beta_1": 0.9}, 230),
    ]:
        optimizer = Adafactor(0.01, **arguments)
        optimizer.build([keras.Variable(np.zeros(shape, "float32"))])
        # Without the step counter and the learning rate.
        assert sum(int(np.prod(variable.shape)) for variable in optimizer.variables) - 2 == numbers


def ones(*shape):
    return keras.Variable(np.ones(shape, "float32"))


def gradient_with_zero_row_and_column(scale=1.0):
    gradient = scale * np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    gradient[1], gradient[:, 2] = 0, 0
    return keras.ops.convert_to_tensor(gradient)


@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e6])
def test_a_zero_row_and_a_zero_column_stay_put_with_gradients_of_any_size(scale):
    # At 1e6 the published quotient of the zero row's 1e-30 and the mean of 1e12 is already less than float32 holds.
    weight, optimizer = ones(4, 5), Adafactor(0.01)
    for _ in range(3):
        optimizer.apply([gradient_with_zero_row_and_column(scale)], [weight])
    assert np.isfinite(weight.numpy()).all()
    np.testing.assert_array_equal(weight.numpy() != 1, gradient_with_zero_row_and_column() != 0)


def test_the_learning_rate_is_used_as_given_late_in_training():
    # The first gradient after 100 steps is clipped to a root mean square of 1: the step is the learning rate. Keras's
    # optimizer limits it to 1/sqrt(100).
    weight, optimizer = keras.Variable([1.0, 1.0]), Adafactor(0.5)
    optimizer.iterations.assign(99)
    optimizer.apply([keras.ops.convert_to_tensor([3.0, -3.0])], [weight])
    np.testing.assert_allclose(weight.numpy(), [0.5, 1.5], rtol=1e-6)


def test_bfloat16_weights_have_float32_state_and_are_rounded_once():
    random = np.random.default_rng(1)
    start, gradient = (keras.ops.convert_to_tensor(random.normal(size=(16, 16)), dtype="bfloat16") for _ in range(2))
    full, half = keras.Variable(start, dtype="float32"), keras.Variable(start, dtype="bfloat16")
    # A step as large as the weights: rounding it before the subtraction would show in many of them.
    optimizer = Adafactor(1.0, beta_1=0.5)
    optimizer.apply([gradient], [half])
    Adafactor(1.0, beta_1=0.5).apply([keras.ops.cast(gradient, "float32")], [full])
    assert {v.dtype for v in optimizer.variables if v is not optimizer.iterations} == {"float32"}
    once = keras.ops.cast(keras.ops.cast(full, "bfloat16"), "float32")
    np.testing.assert_array_equal(keras.ops.cast(half, "float32"), once)


def test_the_configuration_round_trip_keeps_every_argument():
    options = {"beta_1": 0.5, "decay_power": 0.7, "clip_threshold": None, "multiply_by_parameter_scale": False}
    options |= {"parameter_scale_floor": 0.1, "epsilon": 1e-20, "matrix_view": "last_two", "weight_decay": 0.1}
    schedule = RsqrtNormalizedDecay(0.02, 50, use_linear_warmup=True)
    optimizer = Adafactor(schedule, **options, clipnorm=2.0, name="named")
    config = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    copy = keras.optimizers.deserialize(config)
    assert type(copy) is Adafactor and copy.get_config() == optimizer.get_config()
    assert {name: getattr(copy, name) for name in options} == options and copy.clipnorm == 2.0


def test_a_wrong_argument_is_refused_by_name(subtests):
    cases = [
        ({"beta_1": 1.0}, "`beta_1` must be .* Received: beta_1=1.0"),
        ({"decay_power": 0}, "`decay_power`"),
        ({"decay_power": "x"}, "`decay_power`"),
        ({"multiply_by_parameter_scale": "no"}, "`multiply_by_parameter_scale`"),
        ({"clip_threshold": -1.0}, "`clip_threshold`"),
        ({"parameter_scale_floor": -0.1}, "`parameter_scale_floor`"),
        ({"epsilon": 0.0}, "`epsilon`"),
        ({"matrix_view": "rows"}, "`matrix_view`"),
        ({"momentum": 0.9}, "not recognized"),
    ]
    for arguments, message in cases:
        with subtests.test(str(arguments)), pytest.raises(ValueError, match=message):
            Adafactor(0.01, **arguments)


STEPS = [
    ({"parameter_scale_floor": 0.01}, [0.0, 0.0], [1.0, -1.0], [-0.005, 0.005]),  # weights leave zero
    ({"weight_decay": 0.1}, [1.0, -1.0], [0.0, 0.0], [0.95, -0.95]),  # decoupled from the step
    ({}, np.float64([1.0 + 1e-12, -1.0]), np.float64([0.0, 0.5]), [1.0 + 1e-12, -1.5]),  # in float64
]


@pytest.mark.parametrize(("arguments", "weight", "gradient", "expected"), STEPS)
def test_a_step_is_as_worked_out_by_hand(arguments, weight, gradient, expected):
    weight = keras.Variable(weight)
    Adafactor(0.5, **arguments).apply([keras.ops.convert_to_tensor(gradient)], [weight])
    tolerance = 1e-13 if weight.dtype == "float64" else 1e-6
    np.testing.assert_allclose(weight.numpy()[0], expected[0], rtol=tolerance)
    np.testing.assert_allclose(weight.numpy()[1], expected[1], rtol=1e-6)
