"""Strided and fixed attention in a backbone: layers that take turns are numbered."""

import pytest

from tf_sparse_attention.models import Backbone

INTERLEAVED = [
    {"layer": "StridedAttention", "num_heads": 1, "key_dim": 4, "stride": 4, "heads": "interleaved"},
    {"layer": "FixedAttention", "num_heads": 2, "key_dim": 4, "block_size": 4, "num_summary": 1},
]
INTERLEAVED[1]["heads"] = "interleaved"


def backbone(**changes):
    return Backbone(**{"vocabulary_size": 20, "num_layers": 2, "hidden_dim": 8, "attention": INTERLEAVED, **changes})


def layer_indices(backbone):
    return [[getattr(part, "layer_index", None) for part in block.attention.parts] for block in backbone.blocks]


@pytest.mark.full
def test_a_backbone_numbers_its_interleaved_layers():
    model = backbone(seed=1)
    assert layer_indices(model) == layer_indices(Backbone.from_config(model.get_config())) == [[0, 0], [1, 1]]
    given = [{**part, "layer_index": 7} for part in INTERLEAVED]
    assert layer_indices(backbone(attention=given)) == [[7, 7]] * 2
    merged = [{**part, "heads": "merged"} for part in INTERLEAVED]
    assert layer_indices(backbone(attention=merged)) == [[None, None]] * 2
    local = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 3}
    skipped = backbone(attention={"parts": [*INTERLEAVED, local], "num_local_layers": 1})
    assert layer_indices(skipped) == [[None], [1, 1, None]]
