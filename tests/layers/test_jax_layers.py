"""Layers on JAX: training equal to TensorFlow, exports, forward derivatives, rematerialization and float64."""

import json

import numpy as np
import pytest

from tests.cases import CASES
from tests.draws import first
from tests.layers.remat_models import train

NAMES = ["top_k", *(name for name in CASES if name != "top_k")]


def run_check(run_jax, name, *arguments):
    """Return what a function of `jax_worker` returns."""
    code = f"import json\nfrom tests.layers import jax_worker\nprint(json.dumps(jax_worker.{name}(*{arguments})))"
    return json.loads(run_jax(code))


@pytest.mark.full
def test_fit_with_rematerialization_on_jax_equals_tensorflow_without(run_jax, tmp_path):
    results = train(remat=False, dropout=0.0, revive_after=0, jit_compile=False)
    np.savez(tmp_path / "tensorflow.npz", **{f"training/{i}": result for i, result in enumerate(results)})
    assert run_check(run_jax, "training", str(tmp_path / "tensorflow.npz")) < 1e-5  # losses, weights and state


@pytest.mark.full
def test_rematerialization_keeps_a_fraction_of_the_activations_on_jax(run_jax):
    plain, again = run_check(run_jax, "memory")
    assert again < plain / 5


@pytest.mark.parametrize("name", first(NAMES, 1))
def test_contracts_hold_on_jax(run_jax, name):
    assert run_check(run_jax, "same_contracts", name) == "passed"


FORWARD = [("local_window", True), ("nearest", False), ("dense", True), ("fixed", True), ("selected", False)]


@pytest.mark.full
@pytest.mark.parametrize(("name", "has_derivative"), first([*FORWARD, ("sparse_sinks", False)], 2))
def test_only_patterns_without_gradients_of_their_own_have_forward_derivatives_on_jax(run_jax, name, has_derivative):
    found = run_check(run_jax, "forward_mode", name)
    assert found < 5e-3 if has_derivative else found == "TypeError"  # of differences in float32


@pytest.mark.full
@pytest.mark.parametrize("name", first(NAMES, 1))
def test_a_saved_model_that_jax_exports_runs_in_tensorflow(run_jax, name, tmp_path):
    if name == "local_2d_blocks":
        pytest.skip("takes a limited length, with which JAX cannot compare one that it does not know")
    assert run_check(run_jax, "saved_model", name, str(tmp_path)) < 1e-5


@pytest.mark.full
@pytest.mark.parametrize("name", first(["local_blocks", "native"], 1))
def test_float64_on_jax_is_float64_throughout(run_jax, name):
    """With a soft cap a row that sees nothing has zeros, and decoding equals the full pass far beyond float32."""
    error, is_finite = run_check(run_jax, "float64", name)
    assert error < 1e-12 and is_finite
