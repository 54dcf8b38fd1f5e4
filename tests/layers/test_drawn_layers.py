"""Layers equal dense attention for random arguments, lengths and masks, with gradients, on both backends."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import Case
from tests.contracts import CLOSE, compare_with_dense, normal, random_masks, with_random_weights
from tests.drawn import KINDS, LONGEST
from tests.draws import MANY

SIZE = 5
# JAX compiles each length again.
LENGTHS = st.sampled_from([1, 7, 33, 60]) if keras.backend.backend() == "jax" else st.integers(1, LONGEST)
CROSSING = ("local", "unequal_blocks", "local_2d", "all_attention", "strided", "fixed", "clustered", "sparse")
CROSSING += ("top_keys", "sparse_top_keys")
WITHOUT_SEGMENTS = ("clustered", "top_keys", "sparse_top_keys")
NEVER_CAUSAL = ("unequal_blocks", "global_local", "clustered", "top_keys", "sparse_top_keys")


@st.composite
def calls(draw, kind):
    """Draw lengths, whether the call is causal, and the names of its masks."""
    num_queries = draw(LENGTHS)
    num_keys = draw(LENGTHS) if kind in CROSSING and draw(st.booleans()) else num_queries
    names = ["query_mask", "key_mask", "attention_mask"] + (["segment_ids"] if num_keys == num_queries else [])
    names += ["global_mask"] if kind == "global_local" else []
    known = [name for name in names if kind not in WITHOUT_SEGMENTS or name != "segment_ids"]
    masks = draw(st.sets(st.sampled_from(known)))
    return num_queries, num_keys, kind not in NEVER_CAUSAL and draw(st.booleans()), sorted(masks)


def compare_drawn(kind, wanted):
    """Compare drawn layers of a kind with NumPy and return how many there were."""
    drawn = []

    @settings(max_examples=wanted, deadline=None)
    @given(KINDS[kind](), calls(kind), st.integers(0, 2**16))
    def compare(made, call, seed):
        compare_one(*made, *call, seed)
        drawn.append(made)

    compare()
    return len(drawn)


def must_be_causal(layer):
    """Return whether the layer requires causal self-attention."""
    return layer.pattern is not None and layer.pattern.must_be_causal


def compare_one(layer_class, arguments, num_queries, num_keys, causal, masks, seed):
    """Compare one layer and one call."""
    layer, inputs = layer_class(**arguments | {"seed": seed}), [normal(2, num_queries, SIZE, seed=seed)]
    num_keys = num_queries if layer.share_qk or must_be_causal(layer) else num_keys
    causal = causal or must_be_causal(layer)
    if num_keys != num_queries:
        inputs.append(normal(2, num_keys, SIZE, seed=seed + 1))
    layer.build(*(x.shape for x in inputs))
    with_random_weights(layer, seed)
    lengths, pairs = (num_queries, num_keys), layer_class.__name__ != "ClusteredAttention"
    given_masks = random_masks(2, layer.num_heads, *lengths, seed=seed, pairs=pairs)
    counts = np.random.default_rng(seed).integers(0, 4, (2, num_keys))  # a token may count as several global ones
    given_masks["global_mask"] = np.where(counts > 1, counts - 1, 0)
    given_masks = {name: given_masks[name] for name in masks}
    # Shares near zero, of keys at the edge of a span, round more: in float64 results are 2e-15 apart, slopes 1e-7.
    # Slopes of norms of two numbers near zero round more, too.
    has_span, has_norm = arguments.get("adaptive_span"), arguments.get("use_query_key_norm")
    tolerances = {"tolerance": (8 if has_span else 4) * CLOSE}
    tolerances["slope_tolerance"] = (8 if has_span or has_norm else 2) * CLOSE
    compare_with_dense(layer, Case(None, causal=causal), *inputs, **tolerances, **given_masks)


pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")


# By default one kind per way to arrange tokens. All kinds are among the cases of test_contract_results.py.
BY_DEFAULT = ("local_2d", "global_local", "routing", "of_all_tokens", "lsh", "sparse")


@pytest.mark.parametrize(
    "kind", [kind if kind in BY_DEFAULT else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
)
@pytest.mark.parametrize("wanted", [2, pytest.param(40, marks=pytest.mark.full)])
def test_drawn_layers_equal_dense_attention(kind, wanted):
    assert compare_drawn(kind, wanted) >= wanted


@pytest.mark.large
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("environment", "wanted"), MANY)
def test_many_drawn_layers_equal_dense_attention(kind, environment, wanted, run_python):
    code = f"from tests.layers.test_drawn_layers import compare_drawn\nprint(compare_drawn({kind!r}, {wanted}))"
    assert json.loads(run_python(code, **environment)) >= wanted
