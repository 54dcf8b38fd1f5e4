"""Routing attention: small cases, selections and warnings."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import CLOSE, SIZE, assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tests.layers.routing_state import X, ready, routing
from tests.oracle.layers import dense_call
from tf_sparse_attention.layers import RoutingAttention, SparseAttention
from tf_sparse_attention.patterns import Nearest


def test_the_published_code_counts_the_commitment_of_shared_queries_twice():
    losses = []
    for reference in (False, True):
        layer = ready(routing(commitment_loss=0.5, reproduce_reference=reference))
        layer(X, training=True)
        losses.append(to_numpy(layer.losses[0]))
    np.testing.assert_allclose(losses[1], 2 * losses[0], rtol=1e-6)


def test_random_clusters_follow_the_seed():
    patterns = [to_numpy(routing(selection="random", seed=seed).attention_pattern(X)) for seed in (7, 7, 8, None, None)]
    assert np.array_equal(patterns[0], patterns[1])
    assert not np.array_equal(patterns[0], patterns[2]) and not np.array_equal(patterns[3], patterns[4])
    unseeded = routing(selection="random", seed=None)
    copy = RoutingAttention.from_config(unseeded.get_config())
    assert np.array_equal(to_numpy(unseeded.attention_pattern(X)), to_numpy(copy.attention_pattern(X)))


def test_selections_of_all_tokens_under_a_causal_mask_warn_once():
    for selection in ("top_k", "strided", "hash"):
        layer = routing(selection=selection, num_clusters=4)
        assert layer.pattern.causal_selection is False
        with pytest.warns(UserWarning, match=f"selection='{selection}' under a causal mask is not causal"):
            layer(X, use_causal_mask=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(X, use_causal_mask=True)
        routing(selection="top_k")(X)
        routing()(X, use_causal_mask=True)


def test_no_query_changes_the_output_of_another():
    layer, value = ready(routing(selection="top_keys", share_qk=False, position="relative")), normal(2, 9, SIZE, seed=1)
    output = to_numpy(layer(X, value))
    others = np.concatenate([100 * normal(2, X.shape[1] - 1, SIZE, seed=2), X[:, -1:]], axis=1)
    assert_close(to_numpy(layer(others, value)[:, -1]), output[:, -1])
    for index in (0, 4):  # and alone, if it stays at its position
        assert_close(to_numpy(layer(X[:, : index + 1], value)[:, index]), output[:, index])


@pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")
@pytest.mark.parametrize("selection", first(["top_k", "strided", "hash"], 1))
def test_a_graph_takes_queries_and_keys_of_any_two_lengths(selection):
    layer = routing(selection=selection, num_clusters=4, cluster_size=5, share_qk=False, position="relative")
    layer.build((2, 3, SIZE))
    with_random_weights(layer)

    @tf.function(input_signature=[tf.TensorSpec((None, None, SIZE))] * 2, autograph=False)
    def graph(query, value):
        return [run(query, value, use_causal_mask=True) for run in (layer, layer.attention_pattern)]

    for lengths in ((1, 1), (3, 2), (2, 9)):
        inputs = [normal(2, length, SIZE, seed=length) for length in lengths]
        output, pattern = graph(*inputs)
        expected = dense_call(layer, *inputs, causal=True)
        assert_close(output, expected.output, CLOSE)
        np.testing.assert_array_equal(pattern, expected.pattern)


def test_shared_queries_and_keys_have_no_key_kernel():
    names = [
        [weight.path.split("/")[-2] for weight in ready(routing(share_qk=share)).weights] for share in (True, False)
    ]
    assert "key" not in names[0] and names[1].count("key") == 2


def test_separate_keys_have_separate_documents():
    layer = SparseAttention(2, 4, Nearest(1, 6), seed=0)
    query, value = normal(1, 6, SIZE), normal(1, 5, SIZE, seed=1)
    documents, others = np.array([[7, 7, 7, -3, -3, -3]]), np.array([[-3, 7, 7, 7, 7]])
    packed = to_numpy(layer(query, value, segment_ids=documents, value_segment_ids=others))
    for document in (7, -3):
        own, seen = documents[0] == document, others[0] == document
        alone = layer(to_numpy(query)[:, own], to_numpy(value)[:, seen])
        assert_close(packed[:, own], alone)


@pytest.mark.parametrize("share_qk", [True, False])
def test_routing_is_sparse_attention_with_normalized_queries_and_keys(share_qk):
    x, pattern = normal(2, 13, SIZE), Nearest(3, 4)
    expected = ready(RoutingAttention(2, 4, 3, 4, share_qk=share_qk, seed=0))
    for normalize in (True, False):
        layer = SparseAttention(2, 4, pattern, share_qk=share_qk, normalize_queries_and_keys=normalize, seed=1)
        layer = SparseAttention.from_config(layer.get_config())
        layer.build(x.shape)
        layer.set_weights(expected.get_weights())
        difference = np.abs(to_numpy(layer(x, use_causal_mask=True)) - to_numpy(expected(x, use_causal_mask=True)))
        assert (difference.max() < 1e-5) == normalize
