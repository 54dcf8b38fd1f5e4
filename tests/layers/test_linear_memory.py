"""No array of any layer is quadratic in the sequence, forward or backward, on either backend."""

import json

import pytest

from tests.draws import first
from tests.layers.linear_memory import LAYERS, quadratic_arrays

JAX = """
import json
from tests.layers.linear_memory import quadratic_arrays
print(json.dumps(quadratic_arrays({name!r})))
"""


@pytest.mark.parametrize("name", first(list(LAYERS), 3))
def test_no_array_is_quadratic_in_the_sequence(name):
    assert quadratic_arrays(name) == []


@pytest.mark.parametrize("name", first(list(LAYERS), 1))
def test_no_array_is_quadratic_in_the_sequence_on_jax(run_jax, name):
    assert json.loads(run_jax(JAX.format(name=name))) == []


def test_the_check_finds_the_scores_of_dense_attention_on_both_backends(run_jax):
    assert any("MatMul" in array or "Einsum" in array for array in quadratic_arrays("dense"))
    assert any("dot_general" in array for array in json.loads(run_jax(JAX.format(name="dense"))))
