"""Retrieved clusters against loops over all queries, and against dense attention where nothing is left out."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.contracts import normal
from tests.draws import first
from tests.oracle import definitions
from tests.oracle.attention import rotate
from tf_sparse_attention import layers
from tf_sparse_attention.ops.balanced_clusters import bisect_keys
from tf_sparse_attention.patterns import First, RetrievedClusters, Window

SIZE, HEADS = 8, 4


def make_layer(pattern, **own):
    keras.utils.set_random_seed(3)
    return layers.SparseAttention(HEADS, 4, pattern=pattern, position="rotary", seed=1, **own)


def slow_attention(pattern, window, sinks, query, key, value, counted):
    """Compute one head in loops, from the definition; `counted` is False for padding."""
    query, key = (rotate(x, np.arange(len(x))) for x in (query / 2, key))
    seen, unread = definitions.retrieved_clusters(query, key, pattern, counted)
    result = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        near = set(range(max(i - window + 1, 0), i + 1)) | set(range(min(sinks, i + 1)))
        read = [j for j in near | {*np.flatnonzero(seen[i])} if counted[j]]
        weights, values = [np.exp(query[i] @ key[j]) for j in read], [value[j] for j in read]
        for group in unread[i] if pattern.use_estimate else ():
            members = [j for j in group if counted[j]]
            left = len([j for j in members if j not in near])
            if left:
                weights.append(left * np.exp(query[i] @ key[members].mean(axis=0)))
                values.append(value[members].mean(axis=0))
        if weights:
            result[i] = np.array(weights) @ np.array(values) / np.sum(weights)
    return result


def slow_layer(layer, x, window, sinks, counted):
    """Compute a layer without bias of `SparseAttention` from its kernels, head by head in loops."""
    pattern = layer.pattern.parts[-1] if hasattr(layer.pattern, "parts") else layer.pattern
    kernels = [ops.convert_to_numpy(each.kernel) for each in (layer.query_dense, layer.key_dense, layer.value_dense)]
    query, key, value = (np.einsum("btd,dnh->bnth", x, kernel) for kernel in kernels)
    group = HEADS // key.shape[1]
    heads = [
        [slow_attention(pattern, window, sinks, q[n], k[n // group], v[n // group], seen) for n in range(HEADS)]
        for q, k, v, seen in zip(query, key, value, counted, strict=True)
    ]
    return np.einsum("bnth,nhd->btd", heads, ops.convert_to_numpy(layer.output_dense.kernel))


PATTERNS = [
    (RetrievedClusters(2, 2, 8), 0, 0),
    (RetrievedClusters(3, 2, 16, use_estimate=False), 0, 0),
    (Window(5) | First(2) | RetrievedClusters(2, 4, 8), 5, 2),
    (Window(3) | RetrievedClusters(1, 1, 4), 3, 0),
    (Window(5) | First(2) | RetrievedClusters(2, 1, 8, num_nodes=2), 5, 2),
    (RetrievedClusters(3, 2, 32, num_nodes=1), 0, 0),
]


@pytest.mark.parametrize(("pattern", "window", "sinks"), PATTERNS)
@pytest.mark.parametrize("length", first([37, 8, 5, 64, 1, 40], 2))
def test_a_query_reads_the_best_clusters_and_runs(pattern, window, sinks, length):
    layer = make_layer(pattern, num_key_value_heads=2)
    x = normal(2, length, SIZE)
    counted = np.arange(length) < np.array([[length], [max(length - 5, 1)]])
    counted[1, 3:12] = False  # also padding in clusters that later queries read
    y = layer(x, use_causal_mask=True, query_mask=counted)
    expected = slow_layer(layer, x, window, sinks, counted)
    np.testing.assert_allclose(ops.convert_to_numpy(y)[counted], expected[counted], atol=1e-4)


def test_all_clusters_are_dense_attention():
    found, expected = sparse_and_dense(Window(3) | RetrievedClusters(100, 2, 8), normal(2, 45, SIZE), "rotary")
    np.testing.assert_allclose(found, expected, atol=1e-5)


def sparse_and_dense(pattern, x, position):
    """Return the results of a pattern and of dense attention with the same weights."""
    made = [layers.SparseAttention(HEADS, 4, pattern=pattern, position=position, seed=1)]
    made.append(layers.DenseAttention(HEADS, 4, position=position))
    for layer in made:
        layer.build(x.shape)
    made[1].set_weights(made[0].get_weights())
    return [ops.convert_to_numpy(layer(x, use_causal_mask=True)) for layer in made]


def test_clusters_of_equal_keys_are_estimated_exactly():
    # Keys repeat 4 times in a segment, so each cluster has equal keys and values.
    x = np.repeat(normal(1, 8, SIZE), 4, axis=1)
    y, expected = sparse_and_dense(RetrievedClusters(1, 4, 16), x, None)
    ends = slice(16, 20)  # the first segment is complete, the second has no complete run
    np.testing.assert_allclose(y[:, ends], expected[:, ends], atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("pattern", first([RetrievedClusters(2, 4, 8), RetrievedClusters(2, 1, 8, num_nodes=2)], 1))
@pytest.mark.parametrize("length", first([21, 8, 5], 1))
def test_lengths_may_be_unknown(pattern, length):
    layer, x = make_layer(Window(3) | pattern), normal(1, length, SIZE)
    inputs = keras.Input((None, SIZE))
    model = keras.Model(inputs, layer(inputs, use_causal_mask=True))
    expected = ops.convert_to_numpy(model(x))
    program = tf.function(model, input_signature=[tf.TensorSpec((None, None, SIZE))])
    np.testing.assert_allclose(program(x), expected, atol=1e-5)


def test_bisection_halves_along_the_first_direction():
    keys = ops.convert_to_tensor([[[0.0, 0], [9, 0.1], [1, 0], [8, 0]]])
    assert ops.convert_to_numpy(bisect_keys(keys, 2)).tolist() == [[0, 2, 3, 1]]
    keys = normal(3, 64, 5)
    own = ops.convert_to_numpy(bisect_keys(ops.convert_to_tensor(keys), 8))
    assert np.array_equal(np.sort(own, axis=-1), np.tile(np.arange(64), (3, 1)))


def test_documents_and_masks_of_pairs_are_refused():
    x = normal(1, 12, SIZE)
    layer = make_layer(RetrievedClusters(1, 2, 4))
    with pytest.raises(ValueError, match="`segment_ids`"):
        layer(x, use_causal_mask=True, segment_ids=np.zeros((1, 12), "int32"))
    with pytest.raises(ValueError, match="`attention_mask`"):
        layer(x, use_causal_mask=True, attention_mask=np.ones((12, 12), bool))


@pytest.mark.full
def test_gradients_are_those_of_constant_clusters():
    from tf_sparse_attention.analysis import assert_causal

    layer = make_layer(Window(2) | RetrievedClusters(2, 2, 8))
    inputs = keras.Input((40, SIZE))
    assert_causal(keras.Model(inputs, layer(inputs, use_causal_mask=True)))


@pytest.mark.parametrize("pattern", first([PATTERNS[number][0] for number in (2, 1, 4)], 1))
@pytest.mark.parametrize("steps", first([[5, 1, 20, 1, 18], [1] * 45, [45], [16, 1, 1, 27]], 1))
def test_decoding_in_steps_is_the_full_pass(pattern, steps):
    check_steps(pattern, steps)


@pytest.mark.full
def test_heads_that_share_keys_can_share_a_choice():
    pattern = RetrievedClusters(2, 2, 8, use_shared_choice=True)
    check_steps(pattern, [5, 1, 20, 1, 18])
    check_steps(RetrievedClusters(2, 1, 8, use_shared_choice=True, num_nodes=2), [5, 1, 20, 1, 18])
    layer, x = make_layer(pattern, num_key_value_heads=2), normal(1, 30, SIZE)
    seen = ops.convert_to_numpy(layer.attention_pattern(x, use_causal_mask=True))[0]
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def check_steps(pattern, steps):
    layer, x = make_layer(pattern, num_key_value_heads=2), normal(2, 45, SIZE)
    full = ops.convert_to_numpy(layer(x, use_causal_mask=True))
    cache, start = layer.init_cache(2, 45), 0
    for length in steps:
        y, cache = layer.extend(x[:, start : start + length], cache)
        np.testing.assert_allclose(y, full[:, start : start + length], atol=1e-4)
        start += length


@pytest.mark.parametrize(("dtype", "tolerance"), first([(None, 1e-4), ("int8", 0.1)], 1))
def test_rows_keep_different_numbers_of_tokens(dtype, tolerance):
    layer = make_layer(Window(5) | First(2) | RetrievedClusters(2, 1, 8, num_nodes=2), num_key_value_heads=2)
    x, begins = normal(2, 48, SIZE), np.zeros(2, "int32")
    full = ops.convert_to_numpy(layer(x, use_causal_mask=True))
    cache = layer.init_cache(2, 48, dtype=dtype)
    for kept in ([17, 9], [3, 9], [12, 12], [1, 1], [7, 13]):
        rows = np.stack([row[begin : begin + max(kept)] for row, begin in zip(x, begins, strict=True)])
        y, cache = layer.extend(rows, cache, num_kept=kept)
        for row, begin, count in zip(range(2), begins, kept, strict=True):
            np.testing.assert_allclose(y[row, :count], full[row, begin : begin + count], atol=tolerance)
        begins += kept
