"""The layers on JAX: what TensorFlow computes, masks that travel through compiled models, training, memory."""

import json

import numpy as np
import pytest

from tests.contracts import MAKERS, SIZE, built, normal, to_numpy
from tests.layers.remat_models import train

COMPARED = ("local_2d_blocks", "strided", "fixed", "top_k", "mixed")


def run_checks(run_python, *checks):
    """Returns {check: figures} of `jax_worker`."""
    code = f"from tests.layers import jax_worker\njax_worker.main({checks})"
    return dict(json.loads(line) for line in run_python(code, KERAS_BACKEND="jax").splitlines())


@pytest.fixture(scope="module")
def figures(run_python, tmp_path_factory):
    """The figures of one process, as starting it is most of the work."""
    path = tmp_path_factory.mktemp("jax") / "tensorflow.npz"
    arrays = {"x": normal(2, 13, SIZE), "names": np.array(COMPARED)}
    for name in COMPARED:
        layer, maker = built(MAKERS[name]), MAKERS[name]
        old = layer.get_weights()
        arrays[f"{name}/output"] = maker.call(layer, arrays["x"], training=True)
        arrays[f"{name}/loss"] = to_numpy(sum(layer.losses)) if layer.losses else np.zeros(())
        arrays[f"{name}/count"] = len(old)
        for kind, weights in (("old", old), ("new", layer.get_weights())):
            arrays |= {f"{name}/{kind}/{i}": weight for i, weight in enumerate(weights)}
    results = train(remat=False, num_blocks=1, dropout=0.0, revive_after=0, jit_compile=False)
    arrays |= {f"training/{i}": result for i, result in enumerate(results)}
    np.savez(path, **arrays)
    return run_checks(run_python, f"same_results={path}", "implicit_masks", f"training={path}", "memory")


def test_a_stateless_training_call_gives_what_tensorflow_gives_and_moves_nothing(figures):
    assert set(figures["same_results"]) == set(COMPARED)
    assert max(figures["same_results"].values()) < 1e-5


def test_implicit_masks_reach_the_layers_of_a_compiled_model(figures):
    assert max(figures["implicit_masks"].values()) < 5e-6


def test_fit_with_rematerialisation_gives_what_tensorflow_gives_without(figures):
    assert figures["training"] < 1e-5  # losses, weights and state


def test_rematerialisation_keeps_a_fraction_of_the_activations(figures):
    plain, again = figures["memory"]
    assert again < plain / 5


@pytest.mark.large
def test_contracts_hold_on_jax(run_python):
    checks = ("same_contracts", "training_with_dropout")
    assert run_checks(run_python, *checks) == dict.fromkeys(checks, "passed")
