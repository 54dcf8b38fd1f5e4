"""No array of any layer is quadratic in the sequence, forward or backward, on either backend."""

import json

import pytest

from tests.layers.linear_memory import BY_DEFAULT, BY_DEFAULT_ON_JAX, LAYERS, quadratic_arrays

JAX = """
import json
from tests.layers.linear_memory import quadratic_arrays
print(json.dumps(quadratic_arrays({name!r})))
"""


def every_layer(by_default):
    """Parametrize a test over the names of `LAYERS`, those that are not named here for the full run."""
    return pytest.mark.parametrize(
        "name", [name if name in by_default else pytest.param(name, marks=pytest.mark.full) for name in LAYERS]
    )


@every_layer(BY_DEFAULT)
def test_no_array_is_quadratic_in_the_sequence(name):
    assert quadratic_arrays(name) == []


@every_layer(BY_DEFAULT_ON_JAX)
def test_no_array_is_quadratic_in_the_sequence_on_jax(run_jax, name):
    assert json.loads(run_jax(JAX.format(name=name))) == []


def test_the_check_finds_the_scores_of_dense_attention():
    assert any("MatMul" in array or "Einsum" in array for array in quadratic_arrays("dense"))


def test_the_check_finds_the_scores_of_dense_attention_on_jax(run_jax):
    assert any("dot_general" in array for array in json.loads(run_jax(JAX.format(name="dense"))))
