"""Calls with a memory equal the last positions of the joined sequence."""

import numpy as np
import pytest

from tests.contracts import CLOSE, SIZE, assert_close, normal, with_random_weights
from tests.draws import first
from tests.programs import differentiate
from tf_sparse_attention import layers
from tf_sparse_attention.patterns import Window

LAYERS = {
    "window": lambda: layers.LocalAttention(2, 4, window=5, position="rotary"),
    "all": lambda: layers.AllAttention(2, 4, num_persistent=3, window=5, mask_self=True, position="relative"),
    "window wider than the memory": lambda: layers.LocalAttention(2, 4, window=40, position="relative"),
    "both sides": lambda: layers.LocalAttention(2, 4, window=4, position="alibi"),
    "blocks": lambda: layers.LocalAttention(2, 4, block_size=4, num_blocks_before=2),
    "span": lambda: layers.LocalAttention(2, 4, window=6, adaptive_span={"ramp": 2, "initial": 0.4}),
    "head_split": lambda: layers.AllAttention(3, 4, num_persistent=3, window=5, variant="head_split"),
    "sparse": lambda: layers.SparseAttention(2, 4, Window(5), position="relative", mask_self=True),
}
LAYERS = {"mixed": lambda: layers.MixedAttention([LAYERS["window"](), LAYERS["all"]()]), **LAYERS}
MEMORY, LENGTH = 8, 11  # a multiple of the blocks, so that those of both calls are the same


def make(name):
    layer = LAYERS[name]()
    layer.build((2, LENGTH, SIZE))
    return with_random_weights(layer)


def join(memory, x):
    return np.concatenate([memory, x], axis=1)


@pytest.mark.parametrize("name", first(list(LAYERS), 3))
def test_the_result_equals_that_of_the_joined_sequence(name):
    layer, memory, x = make(name), normal(2, MEMORY, SIZE), normal(2, LENGTH, SIZE, seed=1)
    causal = name != "both sides"
    rng = np.random.default_rng(2)
    own = np.sort(rng.integers(1, 3, (2, LENGTH))).astype("int32")
    before = np.array([[-1, -1, -1, 0, 0, 1, 1, 1], [0] * MEMORY], "int32")
    seen, keys = rng.random((2, 1, LENGTH, LENGTH)) < 0.7, rng.random((2, LENGTH)) < 0.8
    everything = np.ones((2, 1, MEMORY + LENGTH, MEMORY + LENGTH), bool)
    everything[:, :, MEMORY:, MEMORY:] = seen
    given = {"segment_ids": own, "attention_mask": seen, "key_mask": keys, "memory_segment_ids": before}
    joined = {"segment_ids": join(before, own), "attention_mask": everything}
    joined["key_mask"] = join(np.ones((2, MEMORY), bool), keys)
    for of_memory, of_joined in (({}, {}), (given, joined)):
        actual = layer(x, memory=memory, use_causal_mask=causal, **of_memory)
        expected = layer(join(memory, x), use_causal_mask=causal, **of_joined)[:, MEMORY:]
        assert_close(actual, expected, CLOSE)


@pytest.mark.parametrize("name", first(list(LAYERS), 1))
def test_no_gradient_reaches_the_memory(name):
    layer, inputs = make(name), {"memory": normal(2, MEMORY, SIZE), "x": normal(2, LENGTH, SIZE, seed=1)}

    def call(given):
        return [layer(given["x"], memory=given["memory"], use_causal_mask=name != "both sides")]

    _, gradients = differentiate(call, inputs, normal(2, LENGTH, SIZE, seed=2))
    assert not np.any(gradients["memory"]) and np.any(gradients["x"])


def test_scores_begin_with_the_memory():
    layer, memory, x = make("window"), normal(2, MEMORY, SIZE), normal(2, LENGTH, SIZE, seed=1)
    weights = layer(x, memory=memory, use_causal_mask=True, return_attention_scores=True)[1]
    expected = layer(join(memory, x), use_causal_mask=True, return_attention_scores=True)[1]
    reach = layer.pattern.reach  # what lies before is out of sight and left out
    assert_close(weights, np.asarray(expected)[:, :, MEMORY:, MEMORY - reach :], CLOSE)


@pytest.mark.parametrize(("norm", "remat"), first([("pre", False), ("post", True)], 1))
def test_a_block_remembers_its_inputs(norm, remat):
    block = layers.TransformerBlock(LAYERS["window"](), norm=norm, causal=True, remat=remat)
    memory, x = normal(2, MEMORY, SIZE), normal(2, LENGTH, SIZE, seed=1)
    actual = block(x, memory=memory, memory_segment_ids=np.zeros((2, MEMORY), "int32"), training=True)
    assert_close(actual, block(join(memory, x))[:, MEMORY:], CLOSE)


def test_nan_in_masked_memory_reaches_no_token():
    layer = layers.LocalAttention(2, 4, window=6)
    layer.build((None, None, SIZE))
    x, memory, exists = normal(2, 5, SIZE), normal(2, 4, SIZE, seed=1), np.arange(4) >= np.array([[0], [2]])
    results = []
    for fill in (0.0, np.nan):
        given = np.where(exists[..., None], memory, fill).astype("float32")
        called = layer(x, memory=given, memory_segment_ids=np.where(exists, 0, -1), use_causal_mask=True)
        filled, _ = layer.extend(x, layer.init_cache(2, 5, given, exists))
        results.append((np.asarray(called), np.asarray(filled)))
    np.testing.assert_array_equal(results[0], results[1])
    assert np.isfinite(results[1]).all()


def test_wrong_memories_and_patterns_without_memory_are_named(subtests):
    x, memory, layer = normal(2, LENGTH, SIZE, seed=1), normal(2, MEMORY, SIZE), make("window")
    for arguments, name in [
        ({"value": x + 1, "memory": memory}, "memory"),
        ({"memory": normal(3, MEMORY, SIZE)}, "memory"),
        ({"memory": normal(2, MEMORY, SIZE + 1)}, "memory"),
        ({"memory": memory, "segment_ids": np.zeros((2, LENGTH), "int32")}, "memory_segment_ids"),
        ({"memory": memory, "memory_segment_ids": np.zeros((2, 3), "int32")}, "memory_segment_ids"),
        ({"memory": memory, "memory_segment_ids": np.full((2, MEMORY), 0.5)}, "memory_segment_ids"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            layer(x, use_causal_mask=True, **arguments)
    for layer in (
        layers.FixedAttention(2, 4, block_size=4, num_summary=1),
        layers.RoutingAttention(2, 4, num_clusters=2, cluster_size=4),
        layers.LocalAttention(2, 4, block_size=3, key_block_size=4),
        layers.SparseAttention(2, 4, Window(5), share_qk=True),
    ):
        layer.build(x.shape)
        with subtests.test(layer.name), pytest.raises(ValueError, match="`memory` must be None"):
            layer(x, memory=memory)
        if layer.cache_unsupported_reason is None:
            with subtests.test(layer.name), pytest.raises(ValueError, match="`memory` must be None"):
                layer.init_cache(2, LENGTH, memory)


def test_an_attention_mask_of_one_key_is_for_all_but_the_memory():
    layer, given = make("window"), {"memory": normal(2, MEMORY, SIZE), "use_causal_mask": True}
    x, seen = normal(2, LENGTH, SIZE, seed=1), np.random.default_rng(2).random((2, 1, LENGTH, 1)) < 0.5
    expected = layer(x, attention_mask=np.broadcast_to(seen, (2, 2, LENGTH, LENGTH)), **given)
    assert_close(layer(x, attention_mask=seen, **given), expected, CLOSE)
