"""Layers equal dense attention for random arguments, lengths and masks, with gradients, on both backends."""

import json

import pytest

from tests.drawn import KINDS
from tests.draws import JAX_SETTINGS, ON_JAX
from tests.layers.drawn_layers import compare_drawn

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")
JAX = """
import json
from tests.layers.drawn_layers import FIXED_LENGTHS, compare_drawn
print(json.dumps(compare_drawn({kind!r}, {wanted}, FIXED_LENGTHS)))
"""


# By default one kind per way to arrange tokens. All kinds are among the cases of test_contract_results.py.
BY_DEFAULT = ("local_2d", "routing", "of_all_tokens", "lsh", "sparse")


@pytest.mark.parametrize(
    "kind", [kind if kind in BY_DEFAULT else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
)
@pytest.mark.parametrize(
    "wanted", [2, pytest.param(40, marks=pytest.mark.full), pytest.param(200, marks=pytest.mark.large)]
)
def test_drawn_layers_equal_dense_attention(kind, wanted):
    assert compare_drawn(kind, wanted) >= wanted


@pytest.mark.large
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_layers_equal_dense_attention_on_jax(kind, run_python):
    assert json.loads(run_python(JAX.format(kind=kind, wanted=ON_JAX), **JAX_SETTINGS)) >= ON_JAX
