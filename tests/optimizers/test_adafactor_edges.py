"""Edge cases of Adafactor: zero gradients, extreme sizes, other dtypes, configuration and errors."""

import json

import keras
import numpy as np
import pytest

from tf_sparse_attention.optimizers import Adafactor, RsqrtNormalizedDecay


def ones(*shape):
    return keras.Variable(np.ones(shape, "float32"))


def gradient_with_zero_row_and_column(scale=1.0):
    gradient = scale * np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    gradient[1], gradient[:, 2] = 0, 0
    return keras.ops.convert_to_tensor(gradient)


def test_a_zero_row_and_a_zero_column_are_nan_in_keras_and_stay_put_in_ours():
    ours, theirs = ones(4, 5), ones(4, 5)
    Adafactor(0.01).apply([gradient_with_zero_row_and_column()], [ours])
    keras.optimizers.Adafactor(0.01).apply([gradient_with_zero_row_and_column()], [theirs])
    assert np.isnan(theirs.numpy()).any()
    moved = ours.numpy() != 1
    assert np.isfinite(ours.numpy()).all()
    np.testing.assert_array_equal(moved, gradient_with_zero_row_and_column() != 0)


@pytest.mark.parametrize("scale", [1e-15, 1e6, 1e15])
def test_a_zero_row_survives_gradients_of_any_size(scale):
    # At 1e6 the published quotient of the zero row's 1e-30 and the mean of 1e12 is already less than float32 holds.
    weight = ones(4, 5)
    optimizer = Adafactor(0.01)
    for _ in range(3):
        optimizer.apply([gradient_with_zero_row_and_column(scale)], [weight])
    assert np.isfinite(weight.numpy()).all()
    np.testing.assert_array_equal(weight.numpy() != 1, gradient_with_zero_row_and_column() != 0)


def test_the_learning_rate_is_used_as_given_late_in_training():
    # The first gradient after 100 steps is clipped to a root mean square of 1: the step is the learning rate. Keras's
    # own limits it to 1/sqrt(100).
    ours, theirs = keras.Variable([1.0, 1.0]), keras.Variable([1.0, 1.0])
    for optimizer, weight in ((Adafactor(0.5), ours), (keras.optimizers.Adafactor(0.5, relative_step=False), theirs)):
        optimizer.iterations.assign(99)
        optimizer.apply([keras.ops.convert_to_tensor([3.0, -3.0])], [weight])
    np.testing.assert_allclose(ours.numpy(), [0.5, 1.5], rtol=1e-6)
    np.testing.assert_allclose(theirs.numpy(), [0.9, 1.1], rtol=1e-6)


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


def test_float64_weights_keep_their_precision():
    weight = keras.Variable(np.float64([1.0 + 1e-12, -1.0]))
    Adafactor(0.25).apply([keras.ops.convert_to_tensor(np.float64([0.0, 1.0]))], [weight])
    assert weight.numpy()[0] == 1.0 + 1e-12
    np.testing.assert_allclose(weight.numpy()[1], -1.25, rtol=1e-6)


def test_the_floor_lets_weights_leave_zero():
    weight = keras.Variable([0.0, 0.0])
    Adafactor(0.5, parameter_scale_floor=0.01).apply([keras.ops.convert_to_tensor([1.0, -1.0])], [weight])
    np.testing.assert_allclose(weight.numpy(), [-0.005, 0.005], rtol=1e-6)


def test_accumulated_gradients_equal_one_step_on_their_mean():
    gradients = np.random.default_rng(2).normal(size=(4, 3, 5)).astype("float32")
    twice, once = ones(3, 5), ones(3, 5)
    accumulating, plain = Adafactor(0.1, gradient_accumulation_steps=2), Adafactor(0.1)
    for gradient in gradients:
        accumulating.apply([keras.ops.convert_to_tensor(gradient)], [twice])
    for gradient in (gradients[:2].mean(axis=0), gradients[2:].mean(axis=0)):
        plain.apply([keras.ops.convert_to_tensor(gradient)], [once])
    np.testing.assert_allclose(twice.numpy(), once.numpy(), rtol=1e-6)


def test_weight_decay_is_decoupled_from_the_step():
    weight = keras.Variable([1.0, -1.0])
    Adafactor(0.5, weight_decay=0.1).apply([keras.ops.convert_to_tensor([0.0, 0.0])], [weight])
    np.testing.assert_allclose(weight.numpy(), [0.95, -0.95], rtol=1e-6)


def test_the_configuration_round_trip_keeps_every_argument():
    optimizer = Adafactor(
        RsqrtNormalizedDecay(0.02, 50, use_linear_warmup=True),
        beta_1=0.5,
        decay_power=0.7,
        clip_threshold=None,
        multiply_by_parameter_scale=False,
        parameter_scale_floor=0.1,
        epsilon=1e-20,
        matrix_view="last_two",
        weight_decay=0.1,
        clipnorm=2.0,
        name="named",
    )
    config = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    copy = keras.optimizers.deserialize(config)
    assert type(copy) is Adafactor
    assert copy.get_config() == optimizer.get_config()
    assert copy.clip_threshold is None and copy.matrix_view == "last_two" and copy.clipnorm == 2.0


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
