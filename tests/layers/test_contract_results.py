"""Results of attention layers: equal to dense attention under all masks, and independent between rows."""

import keras
import numpy as np
import pytest

from tests import contracts
from tests.cases import CASES, OF_EACH_CLASS, every_layer
from tests.contracts import SIZE, assert_close, built, call, normal, random_masks, to_numpy
from tests.draws import first
from tests.oracle.layers import dense_call

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")
# Heads of two kinds with clusters, and a mean over clusters of the whole sequence.
ROUTED = ("top_k_separate", "mixed")


# Ways to arrange tokens and options of heads. Layers with random arguments are compared in test_drawn_layers.py.
UNDER_MASKS = ("all_span", "global_window_relative", "improved_clustered", "local_2d_class", "lsh", "native_grouped")
UNDER_MASKS += ("retrieved_beside", "selected", "sparse_heads", "sparse_routed_shared", "successors", "top_keys")


@every_layer(by_default=("top_k_separate",))
def test_layer_equals_dense_attention(case):
    contracts.check_equals_dense(case)


@every_layer(by_default=UNDER_MASKS)
def test_layer_equals_dense_attention_under_all_masks(case):
    masks = random_masks(2, built(case).num_heads, 13, pairs=case.pairs, segments=case.segments)
    contracts.check_equals_dense(case, **masks)


@pytest.mark.parametrize("name", first(["successors_of_two_kinds", "successors_window", "successors_beside"], 1))
def test_successor_values_stay_within_a_document_that_another_document_interrupts(name):
    segments = np.array([[0, 0, 1, 0, 0, 1, 1, 0, 2, 0, 1, 0, 0]] * 2, "int32")
    contracts.check_equals_dense(CASES[name], segment_ids=segments)


@every_layer(crosses=True, by_default=("local_2d", "fixed", "improved_clustered", "top_k_separate"))
def test_cross_attention_equals_dense_attention(case):
    for num_queries, num_keys in ((6, 17), (17, 6)):
        layer = case.make()
        query, value, key = normal(2, num_queries, SIZE), normal(2, num_keys, 5, seed=1), normal(2, num_keys, 6, seed=2)
        layer.build(query.shape, value.shape, key.shape)
        contracts.with_random_weights(layer)
        masks = {"query_mask": np.arange(num_queries) < np.array([[5], [num_queries]])}
        masks["key_mask"] = np.arange(num_keys) < np.array([[num_keys], [4]])
        expected = dense_call(layer, query, value, key, case.causal, **masks)
        output, weights = call(layer, case, query, value, key, return_attention_scores=True, **masks)
        assert_close(weights, expected.weights)
        assert_close(output, expected.output, contracts.CLOSE)


@every_layer(by_default=("local_window_relative",), pairs=True)
def test_attention_masks_of_every_rank_equal_those_of_rank_4(case):
    layer, x = built(case), normal(2, 13, SIZE)
    for shape in ((13, 13), (2, 13, 13), (1, 13, 13), (2, 1, 13), (1, 1, 1, 13), (2, 1, 13, 1)):
        mask = np.random.default_rng(3).random(shape) < 0.7
        full = np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, (2, layer.num_heads, 13, 13))
        assert_close(call(layer, case, x, attention_mask=mask), call(layer, case, x, attention_mask=full))


@every_layer(by_default=ROUTED)
def test_gradients_reach_every_trainable_weight(case):
    contracts.check_gradients(case)


@every_layer(by_default=("local_2d", "lsh"))
def test_padding_changes_no_row_at_any_length(case):
    contracts.check_padding(case)


@every_layer(by_default=ROUTED)
def test_other_rows_of_a_batch_change_no_row(case):
    contracts.check_batch_mates(case)


@every_layer(by_default=("top_k_separate", "native"))
def test_an_empty_batch_gives_an_empty_result(case):
    layer, x = built(case), np.zeros((0, 13, SIZE), "float32")
    for training in (False, True):
        assert call(layer, case, x, training=training).shape == (0, 13, SIZE)


@every_layer(by_default=("local_window_relative", "nearest_separate", "lsh"), packs=True)
def test_packed_documents_equal_separate_ones(case):
    contracts.check_segments(case)


@every_layer(by_default=OF_EACH_CLASS)
def test_a_layer_from_a_config_is_equal(case):
    contracts.check_config_round_trip(case)


@every_layer(by_default=ROUTED)
def test_calls_outside_training_change_no_state(case):
    contracts.check_state_is_left_alone(case)


@every_layer(by_default=("mixed",))
def test_an_implicit_mask_equals_the_explicit_one_and_is_passed_on(case):
    layer = built(case)
    ids = np.array([[1, 2, 3, 4, 4, 1, 2], [2, 1, 3, 4, 0, 0, 0]])
    x = keras.layers.Embedding(5, SIZE, mask_zero=True)(ids)
    output = layer(x, use_causal_mask=case.causal)
    assert_close(to_numpy(output), call(layer, case, to_numpy(x), query_mask=ids != 0), 0)
    np.testing.assert_array_equal(output._keras_mask, ids != 0)


@every_layer(by_default=("nearest",))
def test_the_query_given_as_value_and_key_is_self_attention(case):
    layer, x = built(case, dtype="mixed_bfloat16"), keras.ops.convert_to_tensor(normal(2, 13, SIZE))
    for others in ({"value": x}, {"value": x, "key": x}):
        assert_close(call(layer, case, x, **others), call(layer, case, x), 0)


def test_masks_of_queries_values_and_keys_hide_keys_together():
    case, x, rng = CASES["local_window"], normal(2, 13, SIZE), np.random.default_rng(0)
    query_mask, value_mask, key_mask = rng.random((3, 2, 13)) < 0.8
    layer, masks = built(case), {"value_mask": value_mask, "key_mask": key_mask}
    together = call(layer, case, x, query_mask=query_mask, key_mask=query_mask & value_mask & key_mask)
    assert_close(call(layer, case, x, query_mask=query_mask, **masks), together, 0)
