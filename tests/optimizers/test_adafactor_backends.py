"""Adafactor trains alike eager, compiled, resumed, on two replicas and on JAX.

`tests/distribution` trains with it on several devices.
"""

import keras
import numpy as np
import pytest

from tests.optimizers.adafactor_worker import STEPS, fit, make_model, train
from tf_sparse_attention.optimizers import Adafactor


def state_of(model):
    weights = {f"weight{i}": w for i, w in enumerate(model.get_weights())}
    return weights | {f"state{i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}


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
    assert_same_state(train("mirrored", two_replicas), here)


def test_stateless_apply_on_jax_equals_fit_here(run_jax, here, tmp_path):
    code = "import numpy as np; from tests.optimizers.adafactor_worker import train\n"
    run_jax(f"{code}np.savez('{tmp_path}/arrays.npz', **train('stateless'))")
    assert_same_state(np.load(tmp_path / "arrays.npz"), here)


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
