"""Local attention on sequences and images: defaults, reach and sequences that end inside the image."""

import numpy as np

from tests.contracts import SIZE, assert_close, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import FixedAttention, LocalAttention, LocalAttention2D, StridedAttention


def image(**own):
    return LocalAttention2D(2, 4, **{"width": 6, "block_shape": (2, 2), **own})


def pattern(layer, length, causal=False):
    """Return the pattern of the first head, bool (T, T)."""
    return to_numpy(layer.attention_pattern(normal(1, length, SIZE), use_causal_mask=causal))[0, 0]


def test_with_a_window_the_block_size_is_only_a_hint():
    layers = [LocalAttention(2, 4, window=5, block_size=size) for size in (1, 7, 256)]
    for layer in layers:
        layer.build((2, 20, SIZE))
        with_random_weights(layer)
    one, *others = (to_numpy(layer(normal(2, 20, SIZE))) for layer in layers)
    for other in others:
        assert_close(other, one, 0)


def test_a_distance_is_learnt_for_each_row_and_column_that_is_seen():
    layer = image(position="relative_2d", block_shape=(1, 2), num_blocks_before=(1, 0), num_blocks_after=(4, 1))
    layer.build((None, None, SIZE))
    sizes = [weight.shape for weight in layer.weights if "relative" in weight.name]
    assert sizes == [(2 * 4 + 1, 4), (2 * 3 + 1, 4)]  # 4 rows below, 3 pixels to the right, on either side


def local(**own):
    return LocalAttention(2, 4, **own)


REACHES = [
    (local, {"window": 5}, 4),
    (local, {"window": 1}, 0),
    (local, {"block_size": 4}, 7),
    (local, {"block_size": 4, "num_blocks_before": 0, "num_blocks_after": 2}, 11),
    (image, {}, 3 * 6 + 3),
    (image, {"num_blocks_before": (0, 0)}, 1 * 6 + 1),
    (image, {"num_blocks_before": (0, 0), "num_blocks_after": (1, 5)}, 3 * 6 + 5),
    (image, {"order": "blocks"}, 12 + 2 * 4 - 1),
    (image, {"order": "blocks", "num_blocks_before": (0, 1)}, 2 * 4 - 1),
    (image, {"order": "blocks", "num_blocks_before": (2, 5), "num_blocks_after": (0, 0)}, 24 + 12 - 1),
]


def test_reach_is_the_largest_distance_seen_and_the_size_of_the_table(subtests):
    for make, own, reach in REACHES:
        with subtests.test(own=own, reach=reach):
            layer = make(position="relative", **own)
            assert layer.pattern.reach == reach
            queries, keys = np.nonzero(pattern(layer, 60))
            assert np.abs(queries - keys).max() == reach
            table = next(weight for weight in layer.weights if weight.name == "relative_key")
            assert table.shape == (2 * max(reach, 1) + 1, 4)


def test_heads_near_and_far_learn_distances_up_to_a_stride_or_block():
    for layer, rows in [
        (StridedAttention(2, 4, stride=4, position="relative"), 2 * 4 + 1),
        (FixedAttention(2, 4, block_size=6, num_summary=1, position="relative"), 2 * 6 + 1),
        (StridedAttention(2, 4, stride=4, position="relative", max_distance=2), 5),
        (FixedAttention(2, 4, block_size=4, num_summary=1, position="relative", max_distance=40), 81),
    ]:
        layer.build((2, 12, SIZE))
        assert {weight.shape[0] for weight in layer.weights if weight.name.startswith("relative")} == {rows}
