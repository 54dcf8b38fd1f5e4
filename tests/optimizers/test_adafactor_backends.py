"""Adafactor trains alike eager, compiled, resumed, on two replicas, on JAX, and with weights split over devices."""

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


@pytest.fixture(scope="module")
def on_jax(run_jax, tmp_path_factory):
    """Function of a mode to the arrays of a training on JAX."""
    folder = tmp_path_factory.mktemp("jax")

    def run(mode):
        code = "import numpy as np; from tests.optimizers.adafactor_worker import train\n"
        run_jax(f"{code}np.savez('{folder}/{mode}.npz', **train('{mode}'))")
        return np.load(folder / f"{mode}.npz")

    return run


@pytest.mark.full
@pytest.mark.parametrize("arguments", [{"jit_compile": True}, {"run_eagerly": True}])
def test_xla_and_eager_training_equal_graph_training(here, arguments):
    assert_same_state(state_of(fit(make_model(**arguments))), here)


@pytest.mark.full
def test_two_replicas_equal_one_device_on_the_joined_batch(two_replicas, here):
    assert_same_state(train("mirrored", two_replicas), here)


def test_stateless_apply_on_jax_equals_fit_here(on_jax, here):
    assert_same_state(on_jax("stateless"), here)


@pytest.mark.full
def test_fit_with_weights_split_over_two_devices_of_jax_equals_fit_here(on_jax, here):
    arrays = on_jax("sharded")
    assert_same_state(arrays, here)
    layouts = {name: tuple(value) for name, value in arrays.items() if "kernel" in name}
    # (D, N, H) split over N is the matrix (D, N H); (N, H, D) split over N is (N H, D).
    assert layouts["query_kernel_row_moment"] == ("None",)
    assert layouts["query_kernel_column_moment"] == ("model", "None")
    assert layouts["query_kernel_momentum"] == ("None", "model", "None")
    assert layouts["attention_output_kernel_row_moment"] == ("model", "None")
    assert layouts["attention_output_kernel_column_moment"] == ("None",)


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
