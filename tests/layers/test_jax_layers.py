"""Layers on JAX: equal to TensorFlow, with implicit masks, exports, forward derivatives, rematerialization, float64."""

import json

import numpy as np
import pytest

from tests.cases import CASES
from tests.contracts import SIZE, built, call, normal, to_numpy
from tests.layers.remat_models import train

COMPARED = ("mixed",)


def every_case(*by_default):
    """Parametrize a test over the names of all cases, those that are not named here for the full run."""
    full = pytest.mark.full
    return pytest.mark.parametrize(
        "name", [each if each in by_default else pytest.param(each, marks=full) for each in CASES]
    )


def run_checks(run_jax, *checks):
    """Return {check: figures} of `jax_worker`."""
    code = f"from tests.layers import jax_worker\njax_worker.main({checks})"
    return dict(json.loads(line) for line in run_jax(code).splitlines())


def test_a_stateless_training_call_gives_what_tensorflow_gives_and_moves_nothing(run_jax, tmp_path):
    arrays = {"x": normal(2, 13, SIZE), "names": np.array(COMPARED)}
    for name in COMPARED:
        layer, case = built(CASES[name]), CASES[name]
        old = layer.get_weights()
        arrays[f"{name}/output"] = call(layer, case, arrays["x"], training=True)
        arrays[f"{name}/loss"] = to_numpy(sum(layer.losses)) if layer.losses else np.zeros(())
        arrays[f"{name}/count"] = len(old)
        for kind, weights in (("old", old), ("new", layer.get_weights())):
            arrays |= {f"{name}/{kind}/{i}": weight for i, weight in enumerate(weights)}
    np.savez(tmp_path / "tensorflow.npz", **arrays)
    found = run_checks(run_jax, f"same_results={tmp_path / 'tensorflow.npz'}")["same_results"]
    assert set(found) == set(COMPARED)
    assert max(found.values()) < 1e-5


def test_implicit_masks_reach_the_layers_of_a_compiled_model_on_jax(run_jax):
    assert max(run_checks(run_jax, "implicit_masks")["implicit_masks"].values()) < 5e-6


@pytest.mark.full
def test_fit_with_rematerialization_on_jax_equals_tensorflow_without(run_jax, tmp_path):
    results = train(remat=False, num_blocks=1, dropout=0.0, revive_after=0, jit_compile=False)
    np.savez(tmp_path / "tensorflow.npz", **{f"training/{i}": result for i, result in enumerate(results)})
    found = run_checks(run_jax, f"training={tmp_path / 'tensorflow.npz'}")
    assert found["training"] < 1e-5  # losses, weights and state


@pytest.mark.full
def test_rematerialization_keeps_a_fraction_of_the_activations_on_jax(run_jax):
    plain, again = run_checks(run_jax, "memory")["memory"]
    assert again < plain / 5


@every_case("sparse_routed")
def test_contracts_hold_on_jax(run_jax, name):
    assert run_checks(run_jax, f"same_contracts={name}") == {"same_contracts": "passed"}


@pytest.mark.full
@every_case("nearest_separate")
def test_a_layer_is_exported_by_jax_for_any_batch_and_length(run_jax, name):
    if name == "local_2d_blocks":
        pytest.skip("takes a limited length, with which JAX cannot compare one that it does not know")
    assert run_checks(run_jax, f"exported={name}")["exported"] < 1e-5


@pytest.mark.parametrize(
    "name", ["local_window", *(pytest.param(x, marks=pytest.mark.full) for x in ("dense", "fixed"))]
)
def test_patterns_of_positions_have_forward_derivatives_on_jax(run_jax, name):
    assert run_checks(run_jax, f"forward_mode={name}")["forward_mode"] < 5e-3  # of differences in float32


@pytest.mark.parametrize(
    "name", ["nearest", *(pytest.param(x, marks=pytest.mark.full) for x in ("selected", "sparse_sinks"))]
)
def test_patterns_with_gradients_of_their_own_refuse_forward_derivatives_on_jax(run_jax, name):
    assert run_checks(run_jax, f"forward_mode={name}")["forward_mode"] == "TypeError"


@every_case("top_k")
def test_a_saved_model_that_jax_exports_runs_in_tensorflow(run_jax, name, tmp_path):
    if name == "local_2d_blocks":
        pytest.skip("takes a limited length, with which JAX cannot compare one that it does not know")
    assert run_checks(run_jax, f"saved_model={name}={tmp_path}")["saved_model"] < 1e-5


@pytest.mark.full
@pytest.mark.parametrize("name", ["sparse_sinks", "sparse_routed", "sparse_heads", "sparse_image"])
def test_compositions_decode_on_jax(run_jax, name):
    assert run_checks(run_jax, f"decodes={name}")["decodes"] < 2e-5


@pytest.mark.large
def test_rematerialization_with_dropout_does_not_change_training_on_jax(run_jax):
    assert run_checks(run_jax, "training_with_dropout") == {"training_with_dropout": "passed"}


def test_float64_on_jax_is_float64_throughout(run_jax):
    """With a soft cap a row that sees nothing has zeros, and decoding equals the full pass far beyond float32."""
    found = run_checks(run_jax, "float64")["float64"]
    assert found["finite"]
    assert max(found["errors"]) < 1e-12
