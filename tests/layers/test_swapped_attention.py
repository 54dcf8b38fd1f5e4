"""A sparse layer in place of a dense one decodes with masks as it computes the whole sequence."""

import numpy as np
import pytest
from keras import ops

from tests.contracts import normal
from tests.draws import first
from tf_sparse_attention.layers import AllAttention, LocalAttention, MixedAttention, RoutingAttention, SwappedAttention

LENGTH, SIZE = 9, 16
HEADS, CLUSTERS = {"num_heads": 2, "key_dim": 8}, {"num_clusters": 2, "cluster_size": 4}
PADDING = {"key_mask": np.arange(LENGTH) >= np.array([[0], [2]])}
PAIRS = {"attention_mask": (np.random.default_rng(0).random((2, LENGTH, LENGTH)) < 0.6) | np.eye(LENGTH, dtype=bool)}
LAYERS = {
    "routed": (lambda: RoutingAttention(**HEADS, **CLUSTERS), PADDING | PAIRS),
    "wide_values": (lambda: LocalAttention(**HEADS, value_dim=6, window=4), PADDING),
    "persistent": (lambda: AllAttention(**HEADS, num_persistent=2, window=3), PAIRS),
    "blocks": (lambda: LocalAttention(**HEADS, block_size=3), {}),
    "rotary": (lambda: LocalAttention(**HEADS, window=5, position="rotary"), PADDING),
    "mixed": (lambda: MixedAttention([LocalAttention(1, 8, window=4), RoutingAttention(1, 8, **CLUSTERS)]), PADDING),
}


@pytest.mark.parametrize("name", first(list(LAYERS), 2))
def test_steps_equal_the_whole_with_masks(name):
    make, masks = LAYERS[name]
    layer, x = SwappedAttention(make()), normal(2, LENGTH, SIZE)
    whole = ops.convert_to_numpy(layer(x, x, use_causal_mask=True, **masks))
    cache, steps = ops.zeros((2, 2, LENGTH, 2, 8)), []
    for start, end in ((0, 4), (4, 5), (5, 7), (7, LENGTH)):
        of_step = {name: mask[:, start:end] if name == "attention_mask" else mask for name, mask in masks.items()}
        step = x[:, start:end]
        output, cache = layer(step, step, cache=cache, cache_update_index=start, **of_step)
        steps.append(ops.convert_to_numpy(output))
    real = masks.get("key_mask", np.ones((2, LENGTH), bool))
    np.testing.assert_allclose(np.concatenate(steps, axis=1)[real], whole[real], atol=1e-5)
