"""Cross-attention decoding equals one call for all queries, and layers without it give the reason."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import with_random_weights
from tests.draws import JAX_SETTINGS, ON_JAX, first
from tests.layers.cross_decoded import KINDS, SIZE, compare_drawn
from tf_sparse_attention import layers

TOLERANCE = 2e-5
HOW_MANY = [1, pytest.param(30, marks=pytest.mark.full), pytest.param(200, marks=pytest.mark.large)]
JAX = """
import json
from tests.layers.cross_decoded import compare_drawn
print(json.dumps(compare_drawn({kind!r}, {wanted})))
"""
SIZES = {"num_heads": 2, "key_dim": 4}


@pytest.mark.parametrize("kind", first(["sparse", "mixed", *(kind for kind in KINDS if kind != "sparse")], 1))
@pytest.mark.parametrize("wanted", HOW_MANY)
def test_drawn_layers_decode_as_one_call(kind, wanted):
    _, error = compare_drawn(kind, wanted)
    assert error < TOLERANCE


@pytest.mark.large
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_drawn_layers_decode_as_one_call_on_jax(kind, run_python):
    _, error = json.loads(run_python(JAX.format(kind=kind, wanted=ON_JAX), **JAX_SETTINGS))
    assert error < TOLERANCE


def layers_of_all_kinds():
    separate = {"share_qk": False, **SIZES}
    return {
        "window": layers.LocalAttention(**SIZES, window=3, position="rotary"),
        "blocks": layers.LocalAttention(**SIZES, block_size=3, key_block_size=2, num_blocks_after=0),
        "all_attention": layers.AllAttention(**SIZES, num_persistent=3, window=4, mask_self=True),
        "routing": layers.RoutingAttention(**separate, num_clusters=3, cluster_size=3, selection="nearest"),
        "top_keys": layers.RoutingAttention(**separate, num_clusters=3, cluster_size=3, selection="top_keys"),
        "lsh": layers.LSHAttention(**separate, num_buckets=4, bucket_size=3, num_rounds=2, position="relative"),
    }


def made(name):
    layer = layers_of_all_kinds()[name]
    layer.build((None, None, SIZE))
    return with_random_weights(layer, 0)


@pytest.mark.parametrize("name", first(["routing", "top_keys", "all_attention", "window", "blocks", "lsh"], 2))
def test_a_step_reads_only_the_keys_of_the_pattern(name, monkeypatch):
    from tf_sparse_attention.patterns.engine import attention

    layer, read = made(name), []
    attend = attention.attend_heads
    monkeypatch.setattr(
        attention,
        "attend_heads",
        lambda query, key, *args, **kwargs: read.append(key.shape) or attend(query, key, *args, **kwargs),
    )
    cache = layer.init_cross_cache(np.ones((2, 100, SIZE), "float32"))
    layer.decode_cross(np.ones((2, 1, SIZE), "float32"), cache, 50)
    shown = {"window": 5, "blocks": 4, "all_attention": 9, "routing": 5, "lsh": 5, "top_keys": 3}[name]
    assert {shape[-2] for shape in read} == {shown}


def test_a_query_beyond_the_keys_sees_nothing():
    layer = made("window")
    cache = layer.init_cross_cache(np.ones((2, 5, SIZE), "float32"))
    output = layer.decode_cross(np.ones((2, 1, SIZE), "float32"), cache, [4, 90])
    bias = next(weight for weight in layer.weights if weight.path.endswith("attention_output/bias"))
    np.testing.assert_allclose(output[1, 0], bias, atol=1e-6)
    assert np.abs(output[0, 0] - ops.convert_to_numpy(bias)).max() > 1e-3


def test_a_cache_is_in_the_compute_dtype():
    layer = layers.LocalAttention(**SIZES, window=6, dtype="mixed_bfloat16")
    layer.build((None, None, SIZE))
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
        for attention in (layer, layers.MixedAttention([layers.LocalAttention(2, 4), layer])):
            with subtests.test(attention.name):
                assert reason in attention.cross_cache_unsupported_reason
                with pytest.raises(ValueError, match="must be one that decodes with a cross-attention cache"):
                    attention.init_cross_cache(np.ones((2, 9, SIZE), "float32"))


def test_wrong_arguments_are_named(subtests):
    layer, value = made("window"), np.ones((2, 9, SIZE), "float32")
    mixed = layers.MixedAttention([layers.LocalAttention(2, 4, name="near"), layers.LocalAttention(2, 4, name="far")])
    mixed.build((None, None, SIZE))
    cache = layer.init_cross_cache(value)
    for message, call in [
        ("must be built before it decodes", lambda: layers.LocalAttention(2, 4).init_cross_cache(value)),
        ("`value`", lambda: layer.init_cross_cache(np.ones((2, 9, SIZE + 1), "float32"))),
        ("`key` and `value`", lambda: layer.init_cross_cache(value, value[:, 1:])),
        ("`value_mask`", lambda: layer.init_cross_cache(value, value_mask=np.ones((2, 8), "bool"))),
        (r"without \['far', 'near'\]", lambda: mixed.decode_cross(value[:, :1], cache, 0)),
        (r"without \['part_0'\]", lambda: layer.decode_cross(value[:, :1], {"near": cache}, 0)),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
