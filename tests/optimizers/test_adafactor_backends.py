"""Adafactor gives equal results on TensorFlow, on two replicas, on JAX, and with weights split over devices."""

import numpy as np
import pytest

from tests.optimizers import adafactor_worker


@pytest.fixture(scope="module")
def here():
    """The weights and the state after the same training in this process, on one device."""
    model = adafactor_worker.fit(adafactor_worker.make_model(jit_compile=False))
    weights = {f"weight{i}": w for i, w in enumerate(model.get_weights())}
    return weights | {f"state{i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}


@pytest.fixture(scope="module")
def on_jax(run_jax, tmp_path_factory):
    """{mode: arrays} of the trainings on JAX."""
    folder = tmp_path_factory.mktemp("jax")
    run_jax(
        "import numpy as np\n"
        "from tests.optimizers import adafactor_worker\n"
        "for mode in ('stateless', 'sharded'):\n"
        f"    np.savez(f'{folder}/{{mode}}.npz', **adafactor_worker.train(mode))\n"
    )
    return {mode: np.load(folder / f"{mode}.npz") for mode in ("stateless", "sharded")}


def assert_same_training(actual, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_two_replicas_equal_one_device_on_the_joined_batch(two_replicas, here):
    assert_same_training(adafactor_worker.train("mirrored", two_replicas), here)


def test_stateless_apply_on_jax_equals_fit_here(on_jax, here):
    assert_same_training(on_jax["stateless"], here)


def test_fit_with_weights_split_over_two_devices_equals_fit_here(on_jax, here):
    assert_same_training(on_jax["sharded"], here)


def test_the_factors_of_a_split_kernel_are_split_as_it_is(on_jax):
    layouts = {name: tuple(value) for name, value in on_jax["sharded"].items() if "kernel" in name}
    # (D, N, H) split over N is the matrix (D, N H); (N, H, D) split over N is (N H, D).
    assert layouts["query_kernel_row_moment"] == ("None",)
    assert layouts["query_kernel_column_moment"] == ("model", "None")
    assert layouts["query_kernel_momentum"] == ("None", "model", "None")
    assert layouts["attention_output_kernel_row_moment"] == ("model", "None")
    assert layouts["attention_output_kernel_column_moment"] == ("None",)
