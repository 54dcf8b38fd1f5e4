"""The mixin that stores the global norm of the last gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.optimizers import Adafactor, GradientNorm


class MeasuredSGD(GradientNorm, keras.optimizers.SGD):
    """The simplest optimizer with a norm: its steps can be worked out by hand."""


class MeasuredAdafactor(GradientNorm, Adafactor):
    """An optimizer that makes gradients dense itself."""


def make_weights(values):
    return [keras.Variable(np.asarray(value, "float32")) for value in values]


def test_norm_is_the_root_of_all_squares_of_the_last_step():
    weights, optimizer = make_weights([[1.0, 2.0], [[5.0]]]), MeasuredSGD(0.1)
    assert float(optimizer.gradient_norm) == 0.0
    for scale, norm in ((1.0, 7.0), (-2.0, 14.0)):
        optimizer.apply([tf.constant([2.0 * scale, 3.0 * scale]), tf.constant([[6.0 * scale]])], weights)
        assert float(optimizer.gradient_norm) == pytest.approx(norm)


def test_rows_of_a_sparse_gradient_that_occur_twice_count_as_their_sum():
    weights = make_weights([np.zeros((4, 2))])
    gradient = tf.IndexedSlices(tf.constant([[1.0, 0.0], [2.0, 4.0]]), tf.constant([3, 3]), tf.constant([4, 2]))
    optimizer = MeasuredSGD(0.1, global_clipnorm=2.0)
    optimizer.apply([gradient], weights)
    assert float(optimizer.gradient_norm) == pytest.approx(5.0)  # of the row (3, 4)


def test_a_gradient_whose_shape_is_unknown_while_tracing_is_measured_before_clipping():
    weights = make_weights([[0.0, 0.0]])
    optimizer = MeasuredSGD(0.1, global_clipnorm=2.0)
    optimizer.build(weights)
    apply = tf.function(lambda gradient: optimizer.apply([gradient], weights))
    apply.get_concrete_function(tf.TensorSpec([None]))(tf.constant([3.0, 4.0]))
    assert float(optimizer.gradient_norm) == pytest.approx(5.0)


@pytest.mark.parametrize("clipping", [{"clipnorm": 2.0}, {"global_clipnorm": 2.0}, {"clipvalue": 2.0}])
def test_norm_is_that_before_clipping(clipping):
    weights = make_weights([[0.0, 0.0]])
    optimizer = MeasuredSGD(0.1, **clipping)
    optimizer.apply([tf.constant([3.0, 4.0])], weights)
    assert float(optimizer.gradient_norm) == pytest.approx(5.0)
    np.testing.assert_allclose(weights[0], {"clipvalue": (-0.2, -0.2)}.get(*clipping, (-0.12, -0.16)), rtol=1e-6)


def test_norm_is_that_of_accumulated_gradients():
    weights = make_weights([[0.0, 0.0]])
    optimizer = MeasuredSGD(0.1, global_clipnorm=2.0, gradient_accumulation_steps=2)
    for gradient in ([6.0, 0.0], [0.0, 8.0]):
        assert float(optimizer.gradient_norm) == 0.0
        optimizer.apply([tf.constant(gradient)], weights)
    assert float(optimizer.gradient_norm) == pytest.approx(5.0)


@pytest.mark.parametrize(("measured", "plain"), [(MeasuredSGD, keras.optimizers.SGD), (MeasuredAdafactor, Adafactor)])
def test_the_steps_are_those_of_the_optimizer(measured, plain):
    results = []
    for optimizer in (measured(0.1), plain(0.1)):
        weights = make_weights([np.arange(6.0).reshape(2, 3), [1.0]])
        for scale in (1.0, -2.0):
            optimizer.apply([scale * tf.ones((2, 3)), scale * tf.ones((1,))], weights)
        results.append([weight.numpy() for weight in weights])
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.full
def test_norm_of_two_replicas_is_that_of_the_joined_batch(two_replicas):
    x = np.arange(8.0).reshape(4, 2).astype("float32")
    y = np.ones((4, 1), "float32")
    norms = []
    for scope in (two_replicas.scope(), tf.distribute.get_strategy().scope()):
        with scope:
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(MeasuredSGD(0.1), loss="mse", jit_compile=False)
        model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
        norms.append(float(model.optimizer.gradient_norm))
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert norms[0] > 1


CODE = """
import keras, numpy as np
from tf_sparse_attention.optimizers import GradientNorm

class Measured(GradientNorm, keras.optimizers.SGD):
    pass

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(Measured(0.1, global_clipnorm=1.0), loss="mse")
model.fit(np.arange(8.0).reshape(4, 2).astype("float32"), np.ones((4, 1)), batch_size=4, verbose=0)
print(float(model.optimizer.gradient_norm))
"""


def test_jax_measures_the_same_norm(run_jax):
    # Errors 0, 4, 8, 12 on (0, 1), (2, 3), (4, 5), (6, 7): gradients mean(2 error x) = (56, 68) and mean(2 error) = 12.
    assert float(run_jax(CODE)) == pytest.approx(np.sqrt(56**2 + 68**2 + 12**2), rel=1e-6)
