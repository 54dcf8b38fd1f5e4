"""Native sparse attention: compressed blocks, selection, gates and copied projections."""

import re

import keras
import numpy as np
import tensorflow as tf

from tests.cases import Case
from tests.contracts import assert_close, built, normal, to_numpy
from tf_sparse_attention.layers import LocalAttention, NativeSparseAttention
from tf_sparse_attention.layers.attention.native_sparse_attention import BlockPooling
from tf_sparse_attention.ops.block_selection import BlockKeys
from tf_sparse_attention.ops.compressed_attention import (
    attend_compressed_blocks,
    select_blocks_by_weight,
    visible_blocks,
)
from tf_sparse_attention.ops.masks import TokenMasks

SIZES = {"block_size": 4, "num_blocks": 2, "window": 3}


def native(**own):
    return built(Case(lambda **common: NativeSparseAttention(2, 4, **SIZES, **own, **common)), (1, 13, 8))


def seen(length, attention_mask=None, **masks):
    masks = TokenMasks(**{name: np.asarray([x]) for name, x in masks.items()})
    blocks = BlockKeys.from_masks(masks, length, 2)
    mask = None if attention_mask is None else np.asarray(attention_mask)[None, None]
    found = visible_blocks(blocks, np.arange(length), masks.query_segments, mask)
    return to_numpy(found)[0, 0].astype(int).tolist()


def test_a_compressed_block_counts_from_its_last_token_on():
    assert seen(5) == [[0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0]]


def test_a_compressed_block_is_seen_by_the_document_of_its_last_token_unless_that_is_padding():
    segments = {name: [0, 1, 1, 2, 2, 2] for name in ("query_segments", "key_segments")}
    assert np.transpose(seen(6, **segments)).tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]]
    assert np.transpose(seen(6, **segments, key_mask=[1, 0, 1, 1, 0, 1]))[0].tolist() == [0] * 6


def test_a_query_sees_a_compressed_block_if_its_mask_shows_all_keys_that_count():
    mask = np.ones((4, 4), bool)
    mask[2, 0] = mask[3, 1] = False
    assert np.transpose(seen(4, mask))[0].tolist() == [0, 1, 0, 0]
    assert np.transpose(seen(4, mask, key_mask=[1, 0, 1, 1]))[0].tolist() == [0, 1, 0, 1]
    assert np.transpose(seen(4, mask[:, :1]))[0].tolist() == [0, 1, 0, 1]  # one number for all keys


def test_blocks_are_selected_by_the_weights_of_all_heads_of_a_group():
    # The products 2, 1, 0 and 0, 1.9, 0: in the sum of the weights the second block is the best.
    query = np.array([[[[1.0, 0.0]], [[0.0, 1.0]]]], "float32")
    key = np.array([[[[2.0, 0.0], [1.0, 1.9], [0.0, 0.0]]]], "float32")
    every = np.ones((1, 1, 1, 3), bool)
    chosen = select_blocks_by_weight(query, key, every, every, 2, {})
    assert [to_numpy(x)[0, :, 0].tolist() for x in chosen] == [[1, 1], [0, 0]]
    weights = to_numpy(attend_compressed_blocks(query, key, key, every).weights)
    np.testing.assert_allclose(weights[0, 0, 0], np.exp([2, 1, 0]) / np.exp([2, 1, 0]).sum(), rtol=1e-5)


def test_pooling_uses_positions_in_the_block_and_ignores_masked_tokens():
    pooling = BlockPooling(2, 3, True, keras.initializers.RandomNormal(seed=1))
    pooling.inner_bias.assign([0.5, 0.0, -0.5])
    x = normal(1, 1, 4, 3)
    position, kernel, outer, bias = (to_numpy(weight) for weight in pooling.weights)
    counted = np.array([[[True, True], [False, True]]])
    found = to_numpy(pooling.pool(pooling.sum_blocks(x, counted, 2)))[0, 0]
    inner = [bias + (x[0, 0, 0] + position[0]) @ kernel[0] + (x[0, 0, 1] + position[1]) @ kernel[1]]
    inner += [bias + (x[0, 0, 3] + position[1]) @ kernel[1]]
    np.testing.assert_allclose(found, [y / (1 + np.exp(-y)) @ outer for y in inner], rtol=1e-5)


def test_blocks_are_selected_in_float32_with_any_dtype():
    query, key = keras.ops.cast(normal(1, 2, 64, 8), "bfloat16"), keras.ops.cast(normal(2, 2, 32, 8)[:1], "bfloat16")
    seen = (np.arange(32) < (np.arange(64)[:, None] + 1) // 2)[None, None]
    chosen, expected = (
        select_blocks_by_weight(*(keras.ops.cast(x, dtype) for x in (query, key)), seen, seen, 4, {})
        for dtype in ("bfloat16", "float32")
    )
    np.testing.assert_array_equal(chosen, expected)


def test_dropout_applies_to_compressed_blocks():
    layer, x = native(use_bias=True, dropout=0.9), normal(1, 13, 8)
    layer._gates.kernel.assign(np.zeros(layer._gates.kernel.shape))
    layer._gates.bias.assign(np.tile([50.0, -50.0, -50.0], (2, 1)))
    kept, dropped = (to_numpy(layer(x, use_causal_mask=True, training=training)) for training in (False, True))
    assert np.abs(kept - dropped).max() > 0.1


def test_gates_of_one_part_give_the_attention_of_that_part():
    layer, near = native(use_bias=True), LocalAttention(2, 4, window=3)
    near.build((1, 13, 8))
    gate = layer._gates
    gate.kernel.assign(np.zeros(gate.kernel.shape))
    gate.bias.assign(np.tile([-50.0, -50.0, 50.0], (2, 1)))
    near.copy_projections(layer)
    for own, other in zip((layer._keys[0], layer._values[0]), (near.key_dense, near.value_dense), strict=True):
        other.set_weights(own.get_weights())
    x = normal(1, 13, 8)
    assert_close(layer(x, use_causal_mask=True), near(x, use_causal_mask=True), 1e-5)


def test_a_program_of_the_forward_pass_has_neither_scatter_nor_loop():
    layer, x = native(position="rotary"), tf.zeros((1, 50, 8))
    run = tf.function(lambda x: layer(x, use_causal_mask=True), jit_compile=True, autograph=False)
    names = set(re.findall(r" ([a-z\-]+)\(", run.experimental_get_compiler_ir(x)(stage="hlo")))
    assert "sort" in names and not names & {"scatter", "while"}
