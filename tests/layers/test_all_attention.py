"""All-attention: persistent vectors and variants, in addition to the contracts of all layers."""

import keras
import numpy as np
import pytest

from tests.contracts import with_random_weights
from tests.draws import first
from tf_sparse_attention.layers import AllAttention, SoftmaxFeedForward, TransformerBlock
from tf_sparse_attention.models import Backbone


def draw(batch=2, length=9, size=6):
    return np.random.default_rng(0).standard_normal((batch, length, size)).astype("float32")


def built(**options):
    layer = AllAttention(2, 4, **{"num_persistent": 3, "window": 4, **options})
    layer.build((None, None, 6))
    return with_random_weights(layer)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_zero_queries_get_the_mean_of_window_and_vectors():
    layer = AllAttention(1, 2, num_persistent=3, window=2, use_bias=False)
    layer.build((None, None, 2))
    query, key, _, _, persistent_key, persistent_value = layer.get_weights()
    identity = np.eye(2, dtype="float32")
    persistent_value[:] = np.array([[[1, 2], [3, 4], [5, 6]]], "float32") / 3**0.5  # read times sqrt(M)
    layer.set_weights([query * 0, key, identity[:, None], identity[None], persistent_key, persistent_value])
    x = np.array([[[10, 0], [20, 0], [30, 0]]], "float32")
    # The window of the first has one position, those of the others two; the vectors add (9, 12) to each sum.
    expected = [[(10 + 9) / 4, 12 / 4], [(30 + 9) / 5, 12 / 5], [(50 + 9) / 5, 12 / 5]]
    np.testing.assert_allclose(layer(x, use_causal_mask=True)[0], expected, rtol=1e-6)


def test_the_vectors_begin_with_variance_one():
    layer = AllAttention(4, 64, num_persistent=256, window=8, seed=0)
    layer.build((None, None, 16))
    for vectors in layer.persistent.read():
        assert np.std(vectors) == pytest.approx(1, abs=0.02)


def test_single_head_attends_to_vectors_with_all_heads_joined():
    layer, x = built(variant="single_head", use_bias=False), draw()
    window = built(num_persistent=0, use_bias=False)
    window.set_weights(layer.get_weights()[:4])
    query, _, _, output, keys, values = layer.get_weights()
    assert keys.shape == values.shape == (1, 3, 8)
    joined = np.einsum("btd,dnh->btnh", x, query).reshape(2, 9, 8)
    # Keys are read times sqrt(N H), which the scale of the joined head takes away again.
    heads = softmax(joined @ keys[0].T) @ (values[0] * 3**0.5)
    expected = np.asarray(window(x)) + np.einsum("btnh,nhd->btd", heads.reshape(2, 9, 2, 4), output)
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=2e-6)


def test_heads_without_a_window_have_no_keys():
    layer = AllAttention(3, 4, num_persistent=5, window=2, variant="head_split")
    layer.build((None, None, 6))
    shapes = {weight.path.split("/", 1)[1]: tuple(weight.shape) for weight in layer.weights}
    assert shapes["key/kernel"] == shapes["value/kernel"] == (6, 2, 4)
    assert shapes["query/kernel"] == (6, 3, 4)
    assert shapes["persistent/key"] == (1, 5, 4)


@pytest.mark.parametrize("variant", first(["single_head", "split", "all", "head_split"], 2))
def test_dropout_applies_only_in_training(variant):
    layer, x = built(variant=variant, dropout=0.5, seed=0), draw()
    plain = built(variant=variant)
    plain.set_weights(layer.get_weights()[: len(plain.weights)])
    np.testing.assert_allclose(layer(x), plain(x), rtol=0, atol=1e-6)
    assert np.abs(np.asarray(layer(x, training=True)) - np.asarray(plain(x))).max() > 0.01


def test_a_block_and_a_backbone_need_no_feed_forward():
    x = draw()
    block = TransformerBlock(AllAttention(2, 4, num_persistent=3, window=4), norm="post", causal=True)
    assert block(x).shape == x.shape
    part = {"layer": "AllAttention", "num_heads": 2, "key_dim": 4, "num_persistent": 3, "window": 4}
    backbone = Backbone(vocabulary_size=10, num_layers=2, hidden_dim=6, attention=[part])
    assert backbone(np.zeros((1, 9), "int32")).shape == (1, 9, 6)
    assert not any("feed_forward" in weight.path for weight in backbone.weights)


def test_a_softmax_feed_forward_equals_attention_to_vectors():
    layer, x = SoftmaxFeedForward(5, num_heads=2), draw()
    layer.build(x.shape)
    keys, values = (np.asarray(weight) for weight in with_random_weights(layer).weights)
    scores = np.einsum("bthd,hmd->bthm", x.reshape(2, 9, 2, 3), keys)  # sqrt(d) of the keys over sqrt(d)
    expected = np.einsum("bthm,hmd->bthd", softmax(scores), values * 5**0.5).reshape(x.shape)
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=1e-5)


def test_a_block_with_a_softmax_feed_forward_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((None, 6))
    attention = AllAttention(2, 4, num_persistent=0, window=4)
    model = keras.Model(inputs, TransformerBlock(attention, SoftmaxFeedForward(5, dropout=0.1, seed=1))(inputs))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(draw()), model(draw()))
