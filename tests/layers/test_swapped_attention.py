"""A sparse layer in place of a dense one decodes with masks as it computes the whole sequence."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tf_sparse_attention.layers import AllAttention, LocalAttention, RoutingAttention, SwappedAttention

LENGTH, SIZE = 9, 16
ARGUMENTS = {"num_heads": 2, "key_dim": 8}


def layers():
    return {
        "window": LocalAttention(**ARGUMENTS, window=4),
        "persistent": AllAttention(**ARGUMENTS, num_persistent=2, window=3),
        "blocks": LocalAttention(**ARGUMENTS, block_size=3),
        "routed": RoutingAttention(**ARGUMENTS, num_clusters=2, cluster_size=4),
        "wide_values": LocalAttention(**ARGUMENTS, value_dim=6, window=4),
    }


def masks(kind):
    """Return masks of all pairs by name: padding at the start, pairs at random, or each alike for all rows."""
    rng = np.random.default_rng(0)
    pairs = (rng.random((2, LENGTH, LENGTH)) < 0.6) | np.eye(LENGTH, dtype=bool)
    return {
        "none": {},
        "padding": {"key_mask": np.arange(LENGTH) >= np.array([[0], [2]])},
        "pairs": {"attention_mask": pairs},
        "both": {"key_mask": np.arange(LENGTH) >= np.array([[0], [2]]), "attention_mask": pairs},
    }[kind]


def of_step(given, first, last):
    """Return the masks of the queries of a step; keys are those of all the cache."""
    return {name: mask[:, first:last] if name == "attention_mask" else mask for name, mask in given.items()}


@pytest.mark.parametrize(
    ("name", "kind"),
    first(
        [
            ("routed", "both"),
            ("wide_values", "padding"),
            ("persistent", "pairs"),
            ("window", "none"),
            ("blocks", "both"),
        ],
        3,
    ),
)
def test_steps_equal_the_whole_with_masks(name, kind):
    layer, given = SwappedAttention(layers()[name]), masks(kind)
    x = np.random.default_rng(1).normal(size=(2, LENGTH, SIZE)).astype("float32")
    whole = ops.convert_to_numpy(layer(x, x, use_causal_mask=True, **given))
    cache, steps = ops.zeros((2, 2, LENGTH, 2, 8)), []
    for start, end in ((0, 4), (4, 5), (5, 7), (7, LENGTH)):
        step = x[:, start:end]
        output, cache = layer(step, step, cache=cache, cache_update_index=start, **of_step(given, start, end))
        steps.append(ops.convert_to_numpy(output))
    real = given.get("key_mask", np.ones((2, LENGTH), bool))
    np.testing.assert_allclose(np.concatenate(steps, axis=1)[real], whole[real], atol=1e-5)
