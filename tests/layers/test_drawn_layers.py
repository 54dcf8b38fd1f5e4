"""Layers with state of their own equal NumPy over drawn arguments, lengths and masks, on both backends."""

import json

import pytest

from tests.layers.drawn_layers import KINDS, compare_drawn

JAX = """
import json
from tests.layers.drawn_layers import FIXED_LENGTHS, compare_drawn
print(json.dumps(compare_drawn({kind!r}, {wanted}, FIXED_LENGTHS)))
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wanted", [10, pytest.param(30, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.large)]
)
def test_drawn_layers_equal_numpy(kind, wanted):
    assert compare_drawn(kind, wanted) >= wanted


@pytest.mark.large
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_layers_equal_numpy_on_jax(kind, run_python):
    assert json.loads(run_python(JAX.format(kind=kind, wanted=100), KERAS_BACKEND="jax")) >= 100
