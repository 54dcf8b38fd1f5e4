"""The weights of every attention of a model: those of the layers themselves, in the order of their calls."""

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa

SIZES = {"num_heads": 2, "key_dim": 4}
LOCAL = [{"layer": "LocalAttention", "window": 5, **SIZES}]
IDS = np.random.default_rng(0).integers(1, 20, (2, 11))


def translator():
    dense = [{"layer": "DenseAttention", **SIZES}]
    encoder = tsa.models.Backbone(20, 1, 8, LOCAL, causal=False, seed=0)
    decoder = tsa.models.LanguageModel(tsa.models.Backbone(20, 1, 8, LOCAL, cross_attention=dense, seed=1))
    return tsa.models.SequenceToSequence(encoder, decoder)


def mixed(num_key_heads):
    grouped = tsa.layers.LocalAttention(window=5, num_heads=4, key_dim=3, num_key_value_heads=num_key_heads, seed=0)
    return tsa.layers.MixedAttention([grouped, tsa.layers.LocalAttention(window=3, num_heads=2, key_dim=3, seed=1)])


def global_tokens():
    return tsa.layers.GlobalLocalAttention(2, 4, window=3, num_first_global=1, own_projections=True)


@pytest.mark.parametrize("make", [lambda: mixed(1), lambda: mixed(2), global_tokens])
def test_weights_are_those_that_the_layer_returns(make):
    layer, x = make(), np.random.default_rng(0).normal(size=(2, 7, 12)).astype("float32")
    _, expected = layer(x, use_causal_mask=False, return_attention_scores=True)
    (found,) = tsa.analysis.attention_weights(layer, x)
    np.testing.assert_allclose(found, np.asarray(expected), atol=1e-6)


def test_those_of_a_decoder_are_its_own_and_then_those_of_the_source_without_its_padding():
    inputs = {"encoder_token_ids": IDS, "decoder_token_ids": IDS[:, :7]}
    inputs["encoder_padding_mask"] = np.arange(11) < np.array([[11], [8]])
    of_encoder, own, across = tsa.analysis.attention_weights(translator(), inputs)
    assert of_encoder.shape == (2, 2, 11, 11) and own.shape == (2, 2, 7, 7) and across.shape == (2, 2, 7, 11)
    np.testing.assert_allclose(across.sum(axis=-1), 1, atol=1e-5)
    assert (across[0] > 0).all() and (across[1, ..., 8:] == 0).all()


def test_a_model_without_attention_of_the_library_is_refused():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="`model`"):
        tsa.analysis.attention_weights(model, np.ones((1, 3)))
