"""Adafactor in Keras training: eager and compiled, sparse gradients, saving and resuming."""

import keras
import numpy as np
import pytest

from tests.draws import first
from tests.optimizers.adafactor_worker import STEPS, fit, make_data, make_model
from tf_sparse_attention.optimizers import Adafactor

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="checks TensorFlow's ways to train")


def state_of(model):
    return [*model.get_weights(), *(variable.numpy() for variable in model.optimizer.variables)]


def assert_same_state(actual, expected, atol):
    for one, other in zip(state_of(actual), state_of(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def trained():
    return fit(make_model(jit_compile=False))


@pytest.mark.full
@pytest.mark.parametrize("arguments", [{"jit_compile": True}, {"run_eagerly": True}])
def test_xla_and_eager_training_equal_graph_training(trained, arguments):
    assert_same_state(fit(make_model(**arguments)), trained, atol=1e-6)


def test_training_lowers_the_loss(trained):
    untrained = make_model(jit_compile=False)
    assert trained.evaluate(*make_data(), verbose=0) < untrained.evaluate(*make_data(), verbose=0) - 0.1


def test_a_sparse_gradient_gives_the_update_of_the_dense_gradient():
    import tensorflow as tf

    # Row 3 occurs twice: its parts must be summed before they are squared.
    values = tf.constant([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
    sparse = tf.IndexedSlices(values, tf.constant([3, 0, 3]), dense_shape=tf.constant([5, 2]))
    start = np.random.default_rng(0).normal(size=(5, 2)).astype("float32")
    weights = []
    for gradient in (sparse, tf.convert_to_tensor(sparse)):
        weight, optimizer = keras.Variable(start), Adafactor(0.1, beta_1=0.9)
        for _ in range(3):
            optimizer.apply([gradient], [weight])
        weights.append(weight.numpy())
    np.testing.assert_array_equal(*weights)
    np.testing.assert_array_equal(weights[0][[1, 2, 4]], start[[1, 2, 4]])


def test_a_saved_model_resumes_training_exactly(trained, tmp_path):
    first_half = fit(make_model(jit_compile=False), last=STEPS // 2)
    first_half.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is Adafactor
    assert_same_state(loaded, first_half, atol=0)
    assert_same_state(fit(loaded, first=STEPS // 2), trained, atol=0)


def test_a_tensorflow_checkpoint_holds_the_whole_state(trained, tmp_path):
    import tensorflow as tf

    path = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer).write(str(tmp_path / "checkpoint"))
    fresh = make_model()
    fresh.optimizer.build(fresh.trainable_variables)
    tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).read(path).assert_consumed()
    assert_same_state(fresh, trained, atol=0)


@pytest.mark.parametrize("jit_compile", first([False, True], 1))
def test_a_dead_unit_and_a_constant_zero_feature_do_not_spread(jit_compile):
    # The dead unit is a zero column of the kernel's gradient, the feature a zero row.
    random = np.random.default_rng(0)
    features, targets = random.normal(size=(32, 4)).astype("float32"), random.normal(size=(32, 1)).astype("float32")
    features[:, 1] = 0
    kernels = []
    for optimizer in (Adafactor(0.01), keras.optimizers.Adafactor(0.01)):
        hidden = keras.layers.Dense(3, "relu", bias_initializer=lambda *args, **kwargs: keras.ops.array([0, -99, 0.0]))
        model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
        model.compile(optimizer, "mse", jit_compile=jit_compile)
        model.fit(features, targets, batch_size=16, epochs=2, verbose=0)
        kernels.append(hidden.kernel.numpy())
    ours, theirs = kernels
    assert np.isfinite(ours).all()
    assert np.isnan(theirs).any()


def test_the_momentum_is_stored_only_when_it_is_used():
    plain = make_model(arguments={"beta_1": 0.0})
    plain.optimizer.build(plain.trainable_variables)
    assert not [v.name for v in plain.optimizer.variables if "momentum" in v.name]


@pytest.mark.parametrize("policy", first(["mixed_bfloat16", "bfloat16", "mixed_float16"], 1))
def test_training_in_half_precision_stays_finite(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = fit(make_model(jit_compile=False))
    finally:
        keras.config.set_dtype_policy("float32")
    assert all(np.isfinite(np.asarray(weight, "float32")).all() for weight in model.get_weights())
