"""Routed heads changed in one thing, and what looking ahead is worth."""

import numpy as np
import pytest

from benchmarks.quality import variants
from tests.contracts import normal, with_random_weights
from tests.draws import first
from tf_sparse_attention.analysis import assert_causal

SIZES = {"num_heads": 2, "key_dim": 4, "num_clusters": 3, "cluster_size": 5, "seed": 1}
LAYERS = {
    "LearnedTemperature": {"use_successor_values": True, "start": 2.0},
    "Gated": {"use_successor_values": True},
    "Started": {"use_successor_values": True, "start": "data"},
    "ShiftedKeys": {"selection": "nearest", "share_qk": False},
    "ConvolvedKeys": {"selection": "nearest", "share_qk": False},
}


@pytest.mark.parametrize("name", first(LAYERS, 2))
def test_a_variant_is_causal_and_made_of_its_config(name):
    layer = getattr(variants, name)(**SIZES, **LAYERS[name])
    layer.build((None, None, 8))
    with_random_weights(layer)
    assert_causal(layer, sequence_length=12, hidden_dim=8, num_cuts=3)
    same = type(layer).from_config(layer.get_config())
    same.build((None, None, 8))
    same.set_weights(layer.get_weights())
    x = normal(2, 12, 8)
    np.testing.assert_array_equal(same(x, use_causal_mask=True), layer(x, use_causal_mask=True))
