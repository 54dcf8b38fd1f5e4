"""Strided and fixed attention: the patterns of heads and their defaults."""

import numpy as np
import pytest

from tests.contracts import SIZE, normal, to_numpy
from tests.oracle import definitions
from tf_sparse_attention.layers import FixedAttention, StridedAttention
from tf_sparse_attention.models import Backbone

X = normal(2, 12, SIZE)


def strided(num_heads=2, **own):
    return StridedAttention(num_heads, 4, **{"stride": 4, **own})


def fixed(num_heads=2, **own):
    return FixedAttention(num_heads, 4, **{"block_size": 4, "num_summary": 1, **own})


def pattern(layer, x=X, **arguments):
    """Return the pattern of each head, bool (N, T, S)."""
    return to_numpy(layer.attention_pattern(x, use_causal_mask=True, **arguments))[0]


def near_and_far(make):
    """Return the causal masks of the two patterns, by definition."""
    if make is strided:
        return [definitions.strided(12, 12, 4, part, causal=True) for part in ("local", "far")]
    return [definitions.fixed(12, 12, 4, 1, 0, part, causal=True) for part in ("local", "far")]


def test_the_default_table_of_distances_reaches_as_far_as_stride_or_block():
    for layer, rows in [
        (strided(position="relative"), 2 * 4 + 1),
        (fixed(position="relative", block_size=6), 2 * 6 + 1),
        (strided(position="relative", max_distance=2), 5),
        (fixed(position="relative", max_distance=40), 81),
    ]:
        layer.build(X.shape)
        assert {weight.shape[0] for weight in layer.weights if weight.name.startswith("relative")} == {rows}


INTERLEAVED = [
    {"layer": "StridedAttention", "num_heads": 1, "key_dim": 4, "stride": 4, "heads": "interleaved"},
    {"layer": "FixedAttention", "num_heads": 2, "key_dim": 4, "block_size": 4, "num_summary": 1},
]
INTERLEAVED[1]["heads"] = "interleaved"


def backbone(**changes):
    return Backbone(**{"vocabulary_size": 20, "num_layers": 2, "hidden_dim": SIZE, "attention": INTERLEAVED, **changes})


def layer_indices(backbone):
    return [[getattr(part, "layer_index", None) for part in block.attention.parts] for block in backbone.blocks]


@pytest.mark.full
def test_a_backbone_numbers_its_interleaved_layers(tmp_path):
    model = backbone(seed=1)
    assert layer_indices(model) == layer_indices(Backbone.from_config(model.get_config())) == [[0, 0], [1, 1]]
    for index, block in enumerate(model.blocks):
        part = index % 2
        expected = [near_and_far(strided)[part], *[near_and_far(fixed)[part]] * 2]
        np.testing.assert_array_equal(pattern(block.attention), expected)
    given = [{**part, "layer_index": 7} for part in INTERLEAVED]
    assert layer_indices(backbone(attention=given)) == [[7, 7]] * 2
    merged = [{**part, "heads": "merged"} for part in INTERLEAVED]
    assert layer_indices(backbone(attention=merged)) == [[None, None]] * 2
    local = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 3}
    skipped = backbone(attention={"parts": [*INTERLEAVED, local], "num_local_layers": 1})
    assert layer_indices(skipped) == [[None], [1, 1, None]]
