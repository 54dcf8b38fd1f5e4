"""The mixins that store the norm of the last gradient and skip updates with nonfinite gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.draws import first
from tf_sparse_attention.optimizers import Adafactor, GradientNorm, SkipNonfinite


class MeasuredSGD(GradientNorm, keras.optimizers.SGD):
    """The simplest optimizer with a norm: its steps can be worked out by hand."""


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


@pytest.mark.parametrize("clipping", [{"clipnorm": 2.0}, {"global_clipnorm": 2.0}, {"clipvalue": 2.0}])
def test_norm_is_that_before_clipping_also_if_the_shape_is_unknown_while_tracing(clipping):
    weights = make_weights([[0.0, 0.0]])
    optimizer = MeasuredSGD(0.1, **clipping)
    optimizer.build(weights)
    apply = tf.function(lambda gradient: optimizer.apply([gradient], weights))
    apply.get_concrete_function(tf.TensorSpec([None]))(tf.constant([3.0, 4.0]))
    assert float(optimizer.gradient_norm) == pytest.approx(5.0)
    np.testing.assert_allclose(weights[0], {"clipvalue": (-0.2, -0.2)}.get(*clipping, (-0.12, -0.16)), rtol=1e-6)


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


def test_norm_is_that_of_accumulated_gradients():
    weights = make_weights([[0.0, 0.0]])
    optimizer = MeasuredSGD(0.1, global_clipnorm=2.0, gradient_accumulation_steps=2)
    for gradient in ([6.0, 0.0], [0.0, 8.0]):
        assert float(optimizer.gradient_norm) == 0.0
        optimizer.apply([tf.constant(gradient)], weights)
    assert float(optimizer.gradient_norm) == pytest.approx(5.0)


class CarefulAdafactor(SkipNonfinite, GradientNorm, Adafactor):
    """The library's optimizer, of momentum and decay too."""


class CarefulAdam(SkipNonfinite, keras.optimizers.AdamW):
    """One of Keras."""


def make(kind):
    options = {"beta_1": 0.9} if issubclass(kind, Adafactor) else {}
    return kind(0.1, weight_decay=0.1, use_ema=True, **options), make_weights([np.ones((2, 3)), np.ones((3,))])


def values(optimizer, weights):
    """All numbers but the count, the last of the optimizer's."""
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in [*weights, *optimizer.variables[:-1]]]


@pytest.mark.parametrize("kind", first([CarefulAdafactor, CarefulAdam], 1))
def test_an_update_with_one_nan_changes_nothing_and_is_counted(kind):
    optimizer, weights = make(kind)
    gradients = [tf.ones((2, 3)), tf.ones((3,))]
    apply = tf.function(lambda given: optimizer.apply(given, weights), jit_compile=True)
    assert int(optimizer.num_skipped) == 0
    optimizer.build(weights)
    apply(gradients)
    before = values(optimizer, weights)
    for wrong in (np.nan, np.inf):
        apply([gradients[0], tf.constant([0.0, wrong, 0.0])])
    for value, expected in zip(values(optimizer, weights), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert int(optimizer.num_skipped) == 2
    apply(gradients)
    assert (values(optimizer, weights)[0] != before[0]).all()


@pytest.mark.full
def test_an_update_skipped_by_one_replica_is_skipped_by_all(two_replicas):
    def train(left_out):
        with two_replicas.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(make(CarefulAdafactor)[0], "mse", jit_compile=False)
        x, y = np.arange(80, dtype="float32").reshape(20, 4) / 80, np.ones((20, 1), "float32")
        y[left_out] = np.nan
        if not left_out:
            x, y = np.delete(x, range(8, 12), axis=0), np.delete(y, range(8, 12), axis=0)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return values(model.optimizer, model.weights), int(keras.ops.convert_to_numpy(model.optimizer.num_skipped))

    (found, skipped), (expected, none) = train([9]), train([])  # of the third batch
    assert (skipped, none) == (1, 0)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other)


SAME = [(MeasuredSGD, keras.optimizers.SGD), (CarefulAdafactor, Adafactor), (CarefulAdam, keras.optimizers.AdamW)]


@pytest.mark.parametrize("kinds", SAME)
def test_finite_updates_are_those_of_the_optimizer(kinds):
    results = []
    for optimizer, weights in map(make, kinds):
        for scale in (1.0, -2.0):
            optimizer.apply([scale * tf.ones((2, 3)), tf.ones((3,))], weights)
        results.append([weight.numpy() for weight in weights])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_rows_of_a_sparse_gradient_are_checked():
    optimizer, (weight, _) = make(CarefulAdafactor)
    rows = tf.IndexedSlices(tf.constant([[1.0, np.nan, 1.0]]), tf.constant([1]), tf.constant([2, 3]))
    optimizer.apply([rows], [weight])
    assert int(optimizer.num_skipped) == 1 and weight.numpy().tolist() == [[1] * 3] * 2


def test_accumulated_gradients_survive_a_skipped_step():
    optimizer = type("Gathering", (SkipNonfinite, keras.optimizers.SGD), {})(1.0, gradient_accumulation_steps=2)
    weight = keras.Variable(np.zeros((1,), "float32"))
    for gradient in (1.0, np.nan, 3.0):
        optimizer.apply([tf.constant([gradient])], [weight])
    assert weight.numpy().tolist() == [-2.0]


ON_JAX = """
import keras, numpy as np
from keras import ops
from tf_sparse_attention.optimizers import Adafactor, GradientNorm, SkipNonfinite

class Careful(SkipNonfinite, GradientNorm, Adafactor):
    pass

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
model.compile(Careful(0.1), loss="mse", jit_compile=True)
seen = []
for target in (3.0, np.nan, 3.0, np.inf):
    model.train_on_batch(np.ones((1, 1)), np.array([[target]]))
    seen.append(float(ops.convert_to_numpy(model.weights[0])[0, 0]))
    if len(seen) == 1:
        print(float(model.optimizer.gradient_norm))
print(int(model.optimizer.num_skipped), int(model.optimizer.iterations.value), np.isfinite(seen).all(),
      seen[0] == seen[1], seen[1] != seen[2], seen[2] == seen[3])
"""


def test_norms_are_measured_and_updates_skipped_on_jax(run_jax):
    norm, *rest = run_jax(ON_JAX).split()
    assert float(norm) == pytest.approx(4.0, rel=1e-6)  # 2 (1 - 3)
    assert rest == ["2", "2", *["True"] * 4]
