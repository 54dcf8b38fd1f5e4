"""Adafactor trains alike eager, compiled, resumed, on two replicas and on JAX.

`tests/distribution` trains with it on several devices.
"""

import keras
import numpy as np
import pytest

from tf_sparse_attention.optimizers import Adafactor, RsqrtNormalizedDecay

STEPS, BATCH = 6, 8


def make_model(**compile_arguments):
    """Token ids (BATCH, 5) to 4 classes: sparse gradients, kernels of rank 3, biases of rank 1 and 2."""
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(11, 6, name="embedding")(ids)
    x = keras.layers.EinsumDense("btd,dnh->btnh", (5, 2, 4), bias_axes="nh", activation="tanh", name="query")(x)
    x = keras.layers.EinsumDense("btnh,nhd->btd", (5, 6), bias_axes="d", name="attention_output")(x)
    outputs = keras.layers.Dense(4, name="logits")(keras.layers.Flatten()(x))
    model = keras.Model(ids, outputs)
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape, scale=0.5) for w in model.get_weights()])
    optimizer = Adafactor(RsqrtNormalizedDecay(0.05, warmup_steps=3), beta_1=0.5)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compile_arguments)
    return model


def make_data():
    random = np.random.default_rng(1)
    # Ids below 9 of 11: two rows of the embedding never get a gradient.
    return random.integers(0, 9, (STEPS * BATCH, 5)).astype("int32"), random.integers(0, 4, STEPS * BATCH)


def fit(model, first=0, last=STEPS):
    ids, labels = make_data()
    part = slice(first * BATCH, last * BATCH)
    model.fit(ids[part], labels[part], batch_size=BATCH, shuffle=False, verbose=0)
    return model


def fit_statelessly(model):
    """Train on JAX with `stateless_apply`, and return the weights and the state."""
    import jax

    optimizer, loss = model.optimizer, model.loss
    trainable = [v.value for v in model.trainable_variables]
    optimizer.build(model.trainable_variables)
    state = [v.value for v in optimizer.variables]

    def loss_of(trainable, ids, labels):
        logits, _ = model.stateless_call(trainable, [], ids, training=True)
        return loss(labels, logits)

    @jax.jit
    def step(trainable, state, ids, labels):
        return optimizer.stateless_apply(state, jax.grad(loss_of)(trainable, ids, labels), trainable)

    ids, labels = make_data()
    for start in range(0, len(ids), BATCH):
        trainable, state = step(trainable, state, ids[start : start + BATCH], labels[start : start + BATCH])
    return trainable, state


def state_of(model):
    return by_name(model.get_weights(), [v.numpy() for v in model.optimizer.variables])


def by_name(weights, state):
    return {f"weight{i}": w for i, w in enumerate(weights)} | {f"state{i}": s for i, s in enumerate(state)}


def assert_same_state(actual, expected, atol=1e-6):
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def here():
    """The weights and the state after the training in this process, on one device."""
    return state_of(fit(make_model(jit_compile=False)))


@pytest.mark.full
@pytest.mark.parametrize("arguments", [{"jit_compile": True}, {"run_eagerly": True}])
def test_xla_and_eager_training_equal_graph_training(here, arguments):
    assert_same_state(state_of(fit(make_model(**arguments))), here)


@pytest.mark.full
def test_two_replicas_equal_one_device_on_the_joined_batch(two_replicas, here):
    with two_replicas.scope():
        model = fit(make_model(jit_compile=False))  # XLA cannot hold the reduction over replicas
    assert_same_state(state_of(model), here)


@pytest.mark.full
def test_stateless_apply_on_jax_equals_fit_here(run_jax, here, tmp_path):
    run_jax(f"""
import numpy as np
from tests.optimizers.test_adafactor_backends import by_name, fit_statelessly, make_model
np.savez("{tmp_path}/arrays.npz", **by_name(*fit_statelessly(make_model())))
""")
    assert_same_state(np.load(tmp_path / "arrays.npz"), here)


@pytest.mark.full
def test_a_saved_model_resumes_training_exactly(here, tmp_path):
    first_half = fit(make_model(jit_compile=False), last=STEPS // 2)
    first_half.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is Adafactor
    assert_same_state(state_of(loaded), state_of(first_half), atol=0)
    assert_same_state(state_of(fit(loaded, first=STEPS // 2)), here, atol=0)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_training_in_half_precision_stays_finite(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = fit(make_model(jit_compile=False))
    finally:
        keras.config.set_dtype_policy("float32")
    assert all(np.isfinite(np.asarray(weight, "float32")).all() for weight in model.get_weights())
