"""Block selection on cases that a reader can compute, and the operations of its programs."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import normal, to_numpy
from tests.draws import first
from tests.patterns.small_cases import attend_pattern, column, selecting
from tf_sparse_attention.layers import BlockSelectedAttention
from tf_sparse_attention.ops.block_selection import select_blocks
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import First, RetrievedClusters, SelectedBlocks, Window, selected_blocks
from tf_sparse_attention.patterns.selected_blocks import BlockSelection, GivenBlocks


def chosen(key, block_size=2, count=1, query=None, **masks):
    query = [1] * len(key) if query is None else query
    masks = TokenMasks(**{name: np.asarray([x]) for name, x in masks.items()})
    found = select_blocks(column(query), column(key), masks, block_size, count)
    return to_numpy(found)[0, 0].T.tolist()


def test_all_queries_may_select_one_block_with_either_sort(monkeypatch):
    monkeypatch.setattr(selected_blocks, "TILE_COST", 0)
    query, key, value = np.abs(normal(3, 1, 2, 300, 4))
    key[:, :, 16:] -= 9  # all like block 0 best
    value[:, :, 16:] = 0
    found = to_numpy(attend_pattern(SelectedBlocks(16, 2), query, key, value, causal=True).output)
    assert (found[:, :, 16:].sum(-1) > 0).all()
    monkeypatch.setattr(selected_blocks, "INT32_END", 0)
    again = attend_pattern(SelectedBlocks(16, 2), query, key, value, causal=True).output
    np.testing.assert_allclose(again, found, atol=1e-6)


TWO_WAYS = [
    SelectedBlocks(4, 3) | First(2),
    Window(5) | RetrievedClusters(2, 4, 16),
    RetrievedClusters(2, 1, 8, num_nodes=1),
    RetrievedClusters(3, 2, 8, use_estimate=False, use_shared_choice=True),
    SelectedBlocks(8, 2, use_shared_choice=True),
]


@pytest.mark.parametrize("pattern", first(TWO_WAYS, 2))
@pytest.mark.parametrize(("length", "padding"), first([(53, 9), (7, 0), (64, 0)], 1))
def test_tiles_compute_what_masked_blocks_compute(pattern, length, padding, monkeypatch):
    query, key, value, upstream = (
        tf.constant(normal(2, heads, length, 4, seed=seed)) for seed, heads in enumerate((4, 2, 2, 4))
    )
    counted = np.arange(length) < np.array([[length], [length - padding]])
    results = []
    for cost in (-1000, 1000):
        monkeypatch.setattr(selected_blocks, "TILE_COST", cost)
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            masks = TokenMasks(key_mask=tf.constant(counted))
            output = attend_pattern(pattern, query, key, value, causal=True, masks=masks).output
            loss = tf.reduce_sum(tf.where(counted[:, None, :, None], output * upstream, 0))
        results.append([output[counted[:, None] & np.ones((2, 4, 1), bool)], *tape.gradient(loss, (query, key, value))])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.full
def test_a_shared_selection_is_sorted_once_per_key_head(monkeypatch):
    monkeypatch.setattr(selected_blocks, "TILE_COST", 0)
    query, key = normal(1, 4, 37, 4), normal(1, 2, 37, 4)[None, 0]
    blocks = select_blocks(query, key, TokenMasks(), 4, 2, use_shared_choice=True)

    def attended(x):
        selected = selecting(BlockSelection(blocks))
        return attend_pattern(GivenBlocks(4, 3), query, x, x, causal=True, select=selected).output

    run = tf.function(attended, jit_compile=True)
    for keys, heads in ((key, "1,2"), (np.repeat(key, 2, axis=1), "1,4")):
        program = run.experimental_get_compiler_ir(tf.constant(keys))(stage="hlo")
        assert set(re.findall(r"s32\[(\d+,\d+),\d+\][^ ]* sort\(", program)) == {heads}


@pytest.mark.full
def test_chunks_of_queries_limit_the_size_of_arrays():
    def largest(chunk_size):
        run = tf.function(lambda x: select_blocks(x, x, TokenMasks(), 4, 1, chunk_size=chunk_size), jit_compile=True)
        program = run.experimental_get_compiler_ir(tf.zeros((1, 1, 512, 2)))(stage="hlo")
        sizes = re.findall(r"f32\[([\d,]+)\]", program)
        return max(int(np.prod([int(size) for size in each.split(",")])) for each in sizes)

    assert largest(None) == 512 * 128
    assert largest(32) == 32 * 128


def test_a_convolution_of_zeros_changes_nothing_and_has_gradients():
    layers = [BlockSelectedAttention(2, 4, block_size=4, key_convolution=size) for size in (None, 5)]
    x = normal(1, 11, 8)
    for layer in layers:
        layer.build(x.shape)
    layers[1].set_weights([*layers[0].get_weights(), np.zeros((5, 2, 4))])
    with tf.GradientTape() as tape:
        outputs = [layer(x, use_causal_mask=True) for layer in layers]
        total = tf.reduce_sum(outputs[1] ** 2)
    np.testing.assert_allclose(*outputs, atol=1e-6)
    assert np.all(tape.gradient(total, layers[1].trainable_weights[-1].value) != 0)


def test_scores_that_are_not_finite_select_no_later_block():
    for strange in (np.nan, np.inf, -np.inf):
        (blocks,) = chosen([1, 1, 1, 1, strange, 1, 1, 1])
        assert blocks[:6] == [-1, -1, 0, 0, 0, 0] and max(blocks[6:]) < 3
