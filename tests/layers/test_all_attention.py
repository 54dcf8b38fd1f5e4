"""All-attention: persistent vectors and variants, in addition to the contracts of all layers."""

import keras
import numpy as np
import pytest

from tests.contracts import assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tf_sparse_attention.layers import AllAttention, SoftmaxFeedForward, TransformerBlock

X = normal(2, 9, 6)


def built(**options):
    layer = AllAttention(2, 4, **{"num_persistent": 3, "window": 4, **options})
    layer.build(X.shape)
    return with_random_weights(layer)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_vectors_begin_with_variance_one():
    layer = AllAttention(4, 64, num_persistent=256, window=8, seed=0)
    layer.build((None, None, 16))
    for vectors in layer.persistent.read():
        assert np.std(vectors) == pytest.approx(1, abs=0.02)


def test_single_head_attends_to_vectors_with_all_heads_joined():
    layer, window = built(variant="single_head", use_bias=False), built(num_persistent=0, use_bias=False)
    window.set_weights(layer.get_weights()[:4])
    query, _, _, output, keys, values = layer.get_weights()
    assert keys.shape == values.shape == (1, 3, 8)
    joined = np.einsum("btd,dnh->btnh", X, query).reshape(2, 9, 8)
    # Keys are read times sqrt(N H), which the scale of the joined head takes away again.
    heads = softmax(joined @ keys[0].T) @ (values[0] * 3**0.5)
    expected = to_numpy(window(X)) + np.einsum("btnh,nhd->btd", heads.reshape(2, 9, 2, 4), output)
    assert_close(layer(X), expected)


@pytest.mark.parametrize("variant", first(["single_head", "split", "all", "head_split"], 2))
def test_dropout_applies_only_in_training(variant):
    layer, plain = built(variant=variant, dropout=0.5, seed=0), built(variant=variant)
    plain.set_weights(layer.get_weights()[: len(plain.weights)])
    assert_close(layer(X), plain(X))
    assert np.abs(to_numpy(layer(X, training=True)) - to_numpy(plain(X))).max() > 0.01


def test_a_softmax_feed_forward_equals_attention_to_vectors_and_is_saved_in_a_block(tmp_path):
    layer = SoftmaxFeedForward(5, num_heads=2, dropout=0.1, seed=1)
    layer.build(X.shape)
    keys, values = (to_numpy(weight) for weight in with_random_weights(layer).weights[:2])
    scores = np.einsum("bthd,hmd->bthm", X.reshape(2, 9, 2, 3), keys)  # sqrt(d) of the keys over sqrt(d)
    expected = np.einsum("bthm,hmd->bthd", softmax(scores), values * 5**0.5).reshape(X.shape)
    assert_close(layer(X), expected, 1e-5)
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, TransformerBlock(built(num_persistent=0), layer)(inputs))
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(X), model(X), 0)
