"""What attention layers compute: the dense twin under all masks, gradients, and rows that do not know each other."""

import keras
import numpy as np
import pytest

from tests import contracts
from tests.contracts import MAKERS, SIZE, assert_close, built, every_layer, normal, random_masks, to_numpy
from tests.layers.dense import dense_call
from tf_sparse_attention.layers import LocalAttention

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")


@every_layer()
def test_a_layer_equals_its_dense_twin(maker):
    contracts.check_dense_twin(maker)


@every_layer()
def test_a_layer_equals_its_dense_twin_under_all_masks(maker):
    contracts.check_dense_twin(maker, **random_masks(2, built(maker).num_heads, 13, pairs=maker.pairs))


@every_layer(slow=True, pairs=True)
@pytest.mark.parametrize("shape", [(13, 13), (2, 13, 13), (1, 13, 13), (2, 1, 13), (1, 1, 1, 13), (2, 1, 13, 1)])
def test_attention_masks_of_every_rank_are_those_of_rank_four(maker, shape):
    layer, x = built(maker), normal(2, 13, SIZE)
    mask = np.random.default_rng(3).random(shape) < 0.7
    full = np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, (2, layer.num_heads, 13, 13))
    assert_close(maker.call(layer, x, attention_mask=mask), maker.call(layer, x, attention_mask=full))


@every_layer(slow=True)
def test_gradients_reach_every_trainable_weight(maker):
    contracts.check_gradients(maker)


@pytest.mark.parametrize("position", [None, "rotary"])
def test_gradients_are_checked_whatever_a_layer_is_called(position):
    def make(**common):
        return LocalAttention(2, 4, window=3, position=position, name="near", **common)

    contracts.check_gradients(contracts.Maker(make))


def test_a_layer_without_a_case_among_the_dense_ones_is_an_error():
    class Other(LocalAttention):
        pass

    with pytest.raises(ValueError, match=r"`layer` must have a case in `CASES` .* Received: layer=<Other"):
        contracts.check_dense_twin(contracts.Maker(lambda **common: Other(2, 4, window=3, **common)))


@every_layer(slow=True)
def test_padding_changes_no_row_at_any_length(maker):
    contracts.check_padding(maker)


@every_layer(slow=True)
def test_batch_mates_change_no_row(maker):
    contracts.check_batch_mates(maker)


@every_layer(slow=True, packs=True)
def test_packed_documents_equal_separate_ones(maker):
    contracts.check_segments(maker)


@every_layer()
def test_a_config_makes_an_equal_layer(maker):
    contracts.check_config_round_trip(maker)


@every_layer(slow=True)
def test_state_is_left_alone_outside_training(maker):
    contracts.check_state_is_left_alone(maker)


@every_layer()
def test_scores_are_rows_of_probabilities_inside_the_pattern(maker):
    layer, x = built(maker), normal(2, 13, SIZE)
    masks = {"query_mask": np.arange(13) < np.array([[13], [8]])}
    output, weights = maker.call(layer, x, return_attention_scores=True, **masks)
    pattern = to_numpy(layer.attention_pattern(x, use_causal_mask=maker.causal, **masks))
    assert weights.shape == pattern.shape == (2, layer.num_heads, 13, 13)
    assert np.all(weights[~pattern] == 0) and np.all(weights >= 0)
    sums = weights.sum(-1)
    # A mean over clusters that is divided by the number of clusters + 0.01, as published, does not sum to one.
    exact = maker is not MAKERS["top_k_published"]
    whole = np.abs(sums - 1) < (1e-6 if exact else 0.011)
    assert np.all(sums < 1 + 1e-6) if maker.vectors else np.all(whole | (sums == 0))
    assert_close(output, maker.call(layer, x, **masks), 0)


@every_layer(slow=True)
def test_masked_queries_have_heads_of_zeros(maker):
    layer, x = built(maker, use_bias=False), normal(2, 13, SIZE)
    output, weights = maker.call(
        layer, x, query_mask=np.arange(13) < np.array([[13], [8]]), return_attention_scores=True
    )
    assert np.all(output[1, 8:] == 0) and np.all(weights[1, :, 8:] == 0) and np.all(weights[1, :, :, 8:] == 0)


@every_layer(slow=True)
@pytest.mark.parametrize("masking", ["embedding", "masking"])
def test_an_implicit_mask_equals_the_explicit_one_and_travels_on(maker, masking):
    layer = built(maker)
    ids = np.array([[1, 2, 3, 4, 4, 1, 2], [2, 1, 3, 4, 0, 0, 0]])
    x = keras.layers.Embedding(5, SIZE, mask_zero=True)(ids)
    if masking == "masking":
        x = keras.layers.Masking()(to_numpy(x) * (ids != 0)[..., None])
    explicit = maker.call(layer, to_numpy(x), query_mask=ids != 0)
    output = layer(x, use_causal_mask=maker.causal)
    assert_close(to_numpy(output), explicit, 0)
    np.testing.assert_array_equal(output._keras_mask, ids != 0)


@every_layer(slow=True)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_query_given_as_value_and_key_is_self_attention(maker, dtype):
    layer, x = built(maker, dtype=dtype), keras.ops.convert_to_tensor(normal(2, 13, SIZE))
    for others in ({"value": x}, {"value": x, "key": x}):
        assert_close(maker.call(layer, x, **others), maker.call(layer, x), 0)


@every_layer(crosses=True)
@pytest.mark.parametrize("lengths", [(13, 13), (6, 17), (17, 6)])
def test_value_and_key_other_than_the_query_equal_the_dense_twin(maker, lengths):
    layer = maker.make()
    query, value, key = normal(2, lengths[0], SIZE), normal(2, lengths[1], 5, seed=1), normal(2, lengths[1], 6, seed=2)
    layer.build(query.shape, value.shape, key.shape)
    contracts.with_random_weights(layer)
    masks = {"query_mask": np.arange(lengths[0]) < np.array([[5], [lengths[0]]])}
    masks["key_mask"] = np.arange(lengths[1]) < np.array([[lengths[1]], [4]])
    expected = dense_call(layer, query, value, key, maker.causal, **masks)
    output, weights = maker.call(layer, query, value, key, return_attention_scores=True, **masks)
    assert_close(weights, expected.weights)
    assert_close(output, expected.output, contracts.CLOSE)


@every_layer(slow=True, crosses=True)
def test_the_value_mask_masks_keys_and_values(maker):
    layer, x, value = built(maker), normal(2, 9, SIZE), normal(2, 9, SIZE, seed=1)
    mask = np.arange(9) < np.array([[9], [4]])
    assert_close(maker.call(layer, x, value, value_mask=mask), maker.call(layer, x, value, key_mask=mask), 0)
    changed = np.where(mask[..., None], value, 7.0)
    assert_close(maker.call(layer, x, changed, value_mask=mask), maker.call(layer, x, value, value_mask=mask), 0)
