"""What attention layers compute: the dense twin under all masks, gradients, and rows that do not know each other."""

import keras
import numpy as np
import pytest

from tests import contracts
from tests.cases import CASES, FEW, OF_EACH_CLASS, OF_EACH_KIND, Case, every_layer
from tests.contracts import SIZE, assert_close, built, call, normal, random_masks, to_numpy
from tests.oracle.layers import dense_call
from tf_sparse_attention.layers import LocalAttention

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")


@every_layer(by_default=FEW)
def test_a_layer_equals_its_dense_twin(case):
    contracts.check_dense_twin(case)


@every_layer(by_default=(*OF_EACH_KIND, "successors_window"))
def test_a_layer_equals_its_dense_twin_under_all_masks(case):
    contracts.check_dense_twin(
        case, **random_masks(2, built(case).num_heads, 13, pairs=case.pairs, segments=case.segments)
    )


SUCCESSORS = ["successors", "successors_window", "successors_beside", "successors_of_two_kinds"]


@pytest.mark.parametrize("name", SUCCESSORS)
def test_values_of_successors_stay_in_a_document_that_another_one_interrupts(name):
    segments = np.array([[0, 0, 1, 0, 0, 1, 1, 0, 2, 0, 1, 0, 0]] * 2, "int32")
    contracts.check_dense_twin(CASES[name], segment_ids=segments)


@every_layer(by_default=("mixed",), pairs=True)
@pytest.mark.parametrize("shape", [(13, 13), (2, 13, 13), (1, 13, 13), (2, 1, 13), (1, 1, 1, 13), (2, 1, 13, 1)])
def test_attention_masks_of_every_rank_are_those_of_rank_four(case, shape):
    layer, x = built(case), normal(2, 13, SIZE)
    mask = np.random.default_rng(3).random(shape) < 0.7
    full = np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, (2, layer.num_heads, 13, 13))
    assert_close(call(layer, case, x, attention_mask=mask), call(layer, case, x, attention_mask=full))


@every_layer(by_default=FEW)
def test_gradients_reach_every_trainable_weight(case):
    contracts.check_gradients(case)


@pytest.mark.parametrize("position", [None, "rotary"])
def test_gradients_are_checked_whatever_a_layer_is_called(position):
    def make(**common):
        return LocalAttention(2, 4, window=3, position=position, name="near", **common)

    contracts.check_gradients(Case(make))


def test_a_layer_without_a_case_among_the_dense_ones_is_an_error():
    class Other(LocalAttention):
        pass

    with pytest.raises(ValueError, match=r"`layer` must have a case in `CASES` .* Received: layer=<Other"):
        contracts.check_dense_twin(Case(lambda **common: Other(2, 4, window=3, **common)))


@every_layer(by_default=(*FEW, "local_2d", "lsh", "selected", "sparse_routed"))
def test_padding_changes_no_row_at_any_length(case):
    contracts.check_padding(case)


@every_layer(by_default=FEW)
def test_batch_mates_change_no_row(case):
    contracts.check_batch_mates(case)


@every_layer(by_default=(*FEW, "all", "lsh", "selected", "native", "sparse_sinks"))
@pytest.mark.parametrize("training", [False, True])
def test_an_empty_batch_gives_an_empty_result(case, training):
    assert call(built(case), case, np.zeros((0, 13, SIZE), "float32"), training=training).shape == (0, 13, SIZE)


@every_layer(by_default=OF_EACH_CLASS, packs=True)
def test_packed_documents_equal_separate_ones(case):
    contracts.check_segments(case)


@every_layer(by_default=OF_EACH_CLASS)
def test_a_config_makes_an_equal_layer(case):
    contracts.check_config_round_trip(case)


@every_layer(by_default=FEW)
def test_state_is_left_alone_outside_training(case):
    contracts.check_state_is_left_alone(case)


@every_layer(by_default=OF_EACH_CLASS)
def test_scores_are_rows_of_probabilities_inside_the_pattern(case):
    layer, x = built(case), normal(2, 13, SIZE)
    masks = {"query_mask": np.arange(13) < np.array([[13], [8]])}
    output, weights = call(layer, case, x, return_attention_scores=True, **masks)
    pattern = to_numpy(layer.attention_pattern(x, use_causal_mask=case.causal, **masks))
    assert weights.shape == pattern.shape == (2, layer.num_heads, 13, 13)
    assert np.all(weights[~pattern] == 0) and np.all(weights >= 0)
    sums = weights.sum(-1)
    # A mean over clusters that is divided by the number of clusters + 0.01, as published, does not sum to one.
    exact = case is not CASES["top_k_published"]
    whole = np.abs(sums - 1) < (1e-6 if exact else 0.011)
    assert np.all(sums < case.num_softmaxes + 1e-6) if case.vectors else np.all(whole | (sums == 0))
    assert_close(output, call(layer, case, x, **masks), 0)


@every_layer(by_default=FEW)
def test_masked_queries_have_heads_of_zeros(case):
    layer, x = built(case, use_bias=False), normal(2, 13, SIZE)
    output, weights = call(
        layer, case, x, query_mask=np.arange(13) < np.array([[13], [8]]), return_attention_scores=True
    )
    assert np.all(output[1, 8:] == 0) and np.all(weights[1, :, 8:] == 0) and np.all(weights[1, :, :, 8:] == 0)


@every_layer(by_default=FEW)
@pytest.mark.parametrize("masking", ["embedding", "masking"])
def test_an_implicit_mask_equals_the_explicit_one_and_travels_on(case, masking):
    layer = built(case)
    ids = np.array([[1, 2, 3, 4, 4, 1, 2], [2, 1, 3, 4, 0, 0, 0]])
    x = keras.layers.Embedding(5, SIZE, mask_zero=True)(ids)
    if masking == "masking":
        x = keras.layers.Masking()(to_numpy(x) * (ids != 0)[..., None])
    explicit = call(layer, case, to_numpy(x), query_mask=ids != 0)
    output = layer(x, use_causal_mask=case.causal)
    assert_close(to_numpy(output), explicit, 0)
    np.testing.assert_array_equal(output._keras_mask, ids != 0)


@every_layer(by_default=FEW)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_query_given_as_value_and_key_is_self_attention(case, dtype):
    layer, x = built(case, dtype=dtype), keras.ops.convert_to_tensor(normal(2, 13, SIZE))
    for others in ({"value": x}, {"value": x, "key": x}):
        assert_close(call(layer, case, x, **others), call(layer, case, x), 0)


@every_layer(crosses=True)
@pytest.mark.parametrize("lengths", [(13, 13), (6, 17), (17, 6)])
def test_value_and_key_other_than_the_query_equal_the_dense_twin(case, lengths):
    layer = case.make()
    query, value, key = normal(2, lengths[0], SIZE), normal(2, lengths[1], 5, seed=1), normal(2, lengths[1], 6, seed=2)
    layer.build(query.shape, value.shape, key.shape)
    contracts.with_random_weights(layer)
    masks = {"query_mask": np.arange(lengths[0]) < np.array([[5], [lengths[0]]])}
    masks["key_mask"] = np.arange(lengths[1]) < np.array([[lengths[1]], [4]])
    expected = dense_call(layer, query, value, key, case.causal, **masks)
    output, weights = call(layer, case, query, value, key, return_attention_scores=True, **masks)
    assert_close(weights, expected.weights)
    assert_close(output, expected.output, contracts.CLOSE)


def test_masks_of_queries_values_and_keys_hide_keys_together():
    case, x, rng = CASES["local_window"], normal(2, 13, SIZE), np.random.default_rng(0)
    query_mask, value_mask, key_mask = rng.random((3, 2, 13)) < 0.8
    layer, masks = built(case), {"value_mask": value_mask, "key_mask": key_mask}
    together = call(layer, case, x, query_mask=query_mask, key_mask=query_mask & value_mask & key_mask)
    assert_close(call(layer, case, x, query_mask=query_mask, **masks), together, 0)


@every_layer(by_default=FEW, crosses=True)
def test_the_value_mask_masks_keys_and_values(case):
    layer, x, value = built(case), normal(2, 9, SIZE), normal(2, 9, SIZE, seed=1)
    mask = np.arange(9) < np.array([[9], [4]])
    assert_close(call(layer, case, x, value, value_mask=mask), call(layer, case, x, value, key_mask=mask), 0)
    changed = np.where(mask[..., None], value, 7.0)
    assert_close(call(layer, case, x, changed, value_mask=mask), call(layer, case, x, value, value_mask=mask), 0)
