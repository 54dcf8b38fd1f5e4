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


def test_accumulated_gradients_equal_one_step_on_their_mean():
    gradients = np.random.default_rng(2).normal(size=(4, 3, 5)).astype("float32")
    twice, once = ones(3, 5), ones(3, 5)
    accumulating, plain = Adafactor(0.1, gradient_accumulation_steps=2), Adafactor(0.1)
    for gradient in gradients:
        accumulating.apply([keras.ops.convert_to_tensor(gradient)], [twice])
    for gradient in (gradients[:2].mean(axis=0), gradients[2:].mean(axis=0)):
        plain.apply([keras.ops.convert_to_tensor(gradient)], [once])
    np.testing.assert_allclose(twice.numpy(), once.numpy(), rtol=1e-6)


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


@pytest.mark.parametrize(
    ("arguments", "weight", "gradient", "expected"),
    [
        ({"parameter_scale_floor": 0.01}, [0.0, 0.0], [1.0, -1.0], [-0.005, 0.005]),  # weights leave zero
        ({"weight_decay": 0.1}, [1.0, -1.0], [0.0, 0.0], [0.95, -0.95]),  # decoupled from the step
        ({}, np.float64([1.0 + 1e-12, -1.0]), np.float64([0.0, 0.5]), [1.0 + 1e-12, -1.5]),  # in float64
    ],
)
def test_a_step_is_as_worked_out_by_hand(arguments, weight, gradient, expected):
    weight = keras.Variable(weight)
    Adafactor(0.5, **arguments).apply([keras.ops.convert_to_tensor(gradient)], [weight])
    tolerance = 1e-13 if weight.dtype == "float64" else 1e-6
    np.testing.assert_allclose(weight.numpy()[0], expected[0], rtol=tolerance)
    np.testing.assert_allclose(weight.numpy()[1], expected[1], rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs sparse gradients of TensorFlow")
def test_a_sparse_gradient_gives_the_update_of_the_dense_gradient():
    import tensorflow as tf

    # Row 3 occurs twice: its parts must be summed before they are squared.
    values = tf.constant([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
    sparse = tf.IndexedSlices(values, tf.constant([3, 0, 3]), dense_shape=tf.constant([5, 2]))
    weights = []
    for gradient in (sparse, tf.convert_to_tensor(sparse)):
        weight, optimizer = ones(5, 2), Adafactor(0.1, beta_1=0.9)
        for _ in range(3):
            optimizer.apply([gradient], [weight])
        weights.append(weight.numpy())
    np.testing.assert_array_equal(*weights)
    np.testing.assert_array_equal(weights[0][[1, 2, 4]], 1)
