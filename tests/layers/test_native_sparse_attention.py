"""Native sparse attention: compressed blocks, selection, gates and copied projections."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import Case
from tests.contracts import built, normal, to_numpy
from tf_sparse_attention.layers import BlockSelectedAttention, NativeSparseAttention
from tf_sparse_attention.ops.compressed_attention import select_blocks_by_weight
from tf_sparse_attention.patterns import selected_blocks

SIZES = {"block_size": 4, "num_blocks": 2, "window": 3}


def native(**own):
    return built(Case(lambda **common: NativeSparseAttention(2, 4, **SIZES, **own, **common)), (1, 13, 8))


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


@pytest.mark.full
@pytest.mark.parametrize("layer_class", [NativeSparseAttention, BlockSelectedAttention])
def test_a_program_of_the_forward_pass_has_neither_scatter_nor_loop(layer_class, monkeypatch):
    monkeypatch.setattr(selected_blocks, "TILE_COST", 0)
    layer, x = layer_class(2, 4, block_size=4, num_blocks=2, position="rotary"), tf.zeros((1, 50, 8))
    layer.build(x.shape)
    run = tf.function(lambda x: layer(x, use_causal_mask=True), jit_compile=True)
    names = set(re.findall(r" ([a-z\-]+)\(", run.experimental_get_compiler_ir(x)(stage="hlo")))
    assert "sort" in names and not names & {"scatter", "while"}
