"""Cross-attention caches: what they read and refuse. `test_decoding.py` compares decoding with one call."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.layers.decoded import SIZE, built
from tf_sparse_attention import layers
from tf_sparse_attention.patterns.engine import attention

CLUSTERS = {"num_clusters": 3, "cluster_size": 3, "share_qk": False}
# Function that makes a layer, and the keys that a query of 100 reads.
READ = [
    (lambda: layers.RoutingAttention(2, 4, **CLUSTERS, selection="nearest"), 5),
    (lambda: layers.RoutingAttention(2, 4, **CLUSTERS, selection="top_keys"), 3),
    (lambda: layers.AllAttention(2, 4, num_persistent=3, window=4, mask_self=True), 9),
    (lambda: layers.LocalAttention(2, 4, window=3, position="rotary"), 5),
    (lambda: layers.LocalAttention(2, 4, block_size=3, key_block_size=2, num_blocks_after=0), 4),
    (lambda: layers.LSHAttention(2, 4, num_buckets=4, bucket_size=3, num_rounds=2, share_qk=False), 5),
]


@pytest.mark.parametrize(("make", "num_keys"), first(READ, 2))
def test_a_step_reads_only_the_keys_of_the_pattern(make, num_keys, monkeypatch):
    layer, read, attend = built(make()), [], attention.attend_heads

    def count(query, key, *arguments, **options):
        read.append(key.shape[-2])
        return attend(query, key, *arguments, **options)

    monkeypatch.setattr(attention, "attend_heads", count)
    cache = layer.init_cross_cache(np.ones((2, 100, SIZE), "float32"))
    layer.decode_cross(np.ones((2, 1, SIZE), "float32"), cache, 50)
    assert set(read) == {num_keys}


def test_a_query_beyond_the_keys_sees_nothing():
    layer = built(layers.LocalAttention(2, 4, window=3))
    cache = layer.init_cross_cache(np.ones((2, 5, SIZE), "float32"))
    output = layer.decode_cross(np.ones((2, 1, SIZE), "float32"), cache, [4, 90])
    bias = next(weight for weight in layer.weights if weight.path.endswith("attention_output/bias"))
    np.testing.assert_allclose(output[1, 0], bias, atol=1e-6)
    assert np.abs(output[0, 0] - ops.convert_to_numpy(bias)).max() > 1e-3


def test_a_cache_is_in_the_compute_dtype():
    layer = built(layers.LocalAttention(2, 4, window=6, dtype="mixed_bfloat16"))
    cache = layer.init_cross_cache(np.ones((2, 9, SIZE), "float32"))
    output = layer.decode_cross(np.ones((2, 1, SIZE), "float32"), cache, 0)
    assert {keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten([output, cache])} == {"bfloat16"}


def test_layers_without_a_cross_attention_cache_give_the_reason(subtests):
    for layer, reason in [
        (layers.RoutingAttention(2, 4, 3, 5), "queries are used as keys"),
        (layers.RoutingAttention(2, 4, 3, 5, share_qk=False, selection="top_k"), "the members of a cluster"),
        (layers.LSHAttention(2, 4, num_buckets=4, bucket_size=5, selection="chunks"), "queries are used as keys"),
        (layers.ClusteredAttention(2, 4, num_clusters=3), "the queries of a cluster share their mean"),
        (layers.GlobalLocalAttention(2, 4), "global tokens belong to the sequence of the queries"),
        (layers.NativeSparseAttention(2, 4), "causal self-attention"),
        (layers.BlockSelectedAttention(2, 4), "causal self-attention"),
        (layers.LocalAttention(2, 4, window=3, use_successor_values=True), "causal self-attention"),
    ]:
        for each in (layer, layers.MixedAttention([layers.LocalAttention(2, 4), layer])):
            with subtests.test(each.name):
                assert reason in each.cross_cache_unsupported_reason
                with pytest.raises(ValueError, match="must be one that decodes with a cross-attention cache"):
                    each.init_cross_cache(np.ones((2, 9, SIZE), "float32"))


def test_wrong_arguments_are_named(subtests):
    layer, value = built(layers.LocalAttention(2, 4, window=3)), np.ones((2, 9, SIZE), "float32")
    mixed = layers.MixedAttention([layers.LocalAttention(2, 4, name="near"), layers.LocalAttention(2, 4, name="far")])
    mixed.build((None, None, SIZE))
    cache = layer.init_cross_cache(value)
    for message, call in [
        ("must be built before it decodes", lambda: layers.LocalAttention(2, 4).init_cross_cache(value)),
        ("`value`", lambda: layer.init_cross_cache(np.ones((2, 9, SIZE + 1), "float32"))),
        ("`key` and `value`", lambda: layer.init_cross_cache(value, value[:, 1:])),
        ("`value_mask`", lambda: layer.init_cross_cache(value, value_mask=np.ones((2, 8), "bool"))),
        (r"entries \['far', 'near'\]", lambda: mixed.decode_cross(value[:, :1], cache, 0)),
        (r"entries \['part_0'\]", lambda: layer.decode_cross(value[:, :1], {"near": cache}, 0)),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
