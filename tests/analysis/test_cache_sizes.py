"""The sizes of caches are those of their tensors, told without making them."""

import keras
import pytest
from keras import ops

from tf_sparse_attention import layers
from tf_sparse_attention.analysis import cache_sizes
from tf_sparse_attention.models import Backbone, LanguageModel

SIZES = {"num_heads": 2, "key_dim": 4}


def built(layer):
    layer.build((None, None, 6))
    return layer


@pytest.mark.parametrize(
    ("name", "own", "num_slots", "num_bytes"),
    [
        # 2 heads of 6 keys and values of 4 floats of 4 bytes, 6 positions, and a count of tokens.
        ("LocalAttention", {"window": 6}, 6, 2 * 6 * 8 * 4 + 6 * 4 + 4),
        ("LocalAttention", {"window": 6, "num_key_value_heads": 1}, 6, 6 * 8 * 4 + 6 * 4 + 4),
        # 3 clusters of 5 keys with their positions, groups and ranks, a counter for each cluster and one of tokens.
        ("RoutingAttention", {"num_clusters": 3, "cluster_size": 5}, 15, 2 * 15 * (4 + 4 + 3) * 4 + 2 * 3 * 4 + 4),
        # Half of the heads have no window and keep nothing.
        ("AllAttention", {"num_persistent": 3, "window": 6, "variant": "head_split"}, 3, 6 * 8 * 4 + 6 * 4 + 4),
        # 64 GiB of 2^30 slots and 4 GiB of positions, which are not allocated.
        ("LocalAttention", {"window": 2**30}, 2**30, 2**30 * (2 * 8 * 4 + 4) + 4),
    ],
)
def test_numbers_worked_by_hand(name, own, num_slots, num_bytes):
    (row,) = cache_sizes(built(getattr(layers, name)(**SIZES, **own)), max_length=2**40).rows
    assert (row.kind, row.num_slots, row.num_bytes) == (name, num_slots, num_bytes)


def test_numbers_of_half_precision_for_several_rows():
    layer = layers.LocalAttention(**SIZES, block_size=5, dtype="mixed_bfloat16")
    (row,) = cache_sizes(built(layer), max_length=100, batch_size=3).rows  # two blocks
    assert (row.num_slots, row.num_bytes, row.bytes_per_token) == (10, 3 * (10 * (2 * (4 + 4) * 2 + 4) + 4), 3.64)


@pytest.mark.parametrize("max_length", [3, 50])
def test_a_model_has_a_row_for_each_part_with_the_bytes_of_its_cache(max_length):
    parts = [
        {"layer": "LocalAttention", **SIZES, "window": 6},
        {"layer": "LSHAttention", **SIZES, "num_buckets": 4, "bucket_size": 5, "num_rounds": 2},
        {"layer": "FixedAttention", **SIZES, "block_size": 4, "num_summary": 2},
    ]
    model = LanguageModel(Backbone(30, 2, 16, parts, intermediate_dim=24))
    sizes = cache_sizes(model, max_length, batch_size=2)
    assert [row.kind for row in sizes.rows] == ["LocalAttention", "LSHAttention", "FixedAttention"] * 2
    assert [row.name for row in sizes.rows][1::3] == [f"backbone/block_{i}/attention/lsh_1" for i in range(2)]
    cache = keras.tree.flatten(model.init_cache(2, max_length))
    assert sizes.num_bytes == sum(ops.convert_to_numpy(x).nbytes for x in cache)
    assert f"| all | | | {sizes.num_bytes:,} |" in str(sizes)


def test_what_has_no_cache_says_why():
    top_k = built(layers.RoutingAttention(**SIZES, num_clusters=3, cluster_size=5, selection="top_k"))
    for message, target in [
        ("must be one that decodes with a cache: with selection='top_k'", top_k),
        ("a cache: it attends to later positions", layers.TransformerBlock(layers.LocalAttention(**SIZES))),
        ("`target`", keras.layers.Dense(3)),
        ("must be built before it decodes", layers.LocalAttention(**SIZES)),
    ]:
        with pytest.raises(ValueError, match=message):
            cache_sizes(target, 9)
