"""How the causality audit calls its target: without a trace, and with gradients where token ids are embedded."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.analysis.causality.audited_layers import Ahead, Tracker, attention, language_model
from tf_sparse_attention.analysis import assert_causal, causality_report


def test_rematerialised_layers_are_audited_like_others():
    with keras.RematScope(mode="full"):
        model, leaky = language_model(attention()), language_model(Ahead(strength=1e-8))
    assert_causal(model, sequence_length=12, training=True)
    assert causality_report(leaky, sequence_length=12).max_gradient > 0


def test_an_audit_leaves_the_model_as_it_found_it():
    tracker = Tracker()
    model = keras.Sequential([tracker, Ahead()])
    model(np.ones((2, 5, 4), "float32"), training=True)
    before = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    assert causality_report(model, training=True).leaks
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert int(tracker.calls) == 1
    assert all("call" not in vars(layer) for layer in (model, *model.layers, tracker.dropout))


def test_a_call_that_a_user_put_on_a_layer_survives_an_error_in_an_audit():
    calls = []

    def call(x):
        calls.append(x)
        if len(calls) > 2:
            raise RuntimeError("called too often")
        return x

    model = keras.Sequential([layers.Identity()])
    model.build((None, None, 4))
    model.layers[0].call = call
    with pytest.raises(RuntimeError, match="called too often"):
        assert_causal(model)
    assert model.layers[0].call is call


def test_a_layer_that_is_no_keras_embedding_may_embed():
    class OneHot(layers.Layer):
        def call(self, ids):
            return ops.one_hot(ids, 11)

    model = keras.Sequential([keras.Input((8,), dtype="int32"), OneHot(name="one_hot"), Ahead(strength=1e-8)])
    report = causality_report(model, vocabulary_size=11)
    assert report.embeddings == ("one_hot",)
    assert [leak.check for leak in report.leaks] == ["gradient"]


class InnerOneHot(layers.Layer):
    """Token ids to vectors, by a sublayer that gets no ids."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)

    def call(self, ids):
        return self.dense(ops.one_hot(ids, 11))


@pytest.mark.parametrize(
    "make",
    [
        InnerOneHot,
        lambda: keras.Sequential([keras.Input((8,), dtype="int32"), InnerOneHot()]),
        lambda: layers.Lambda(lambda ids: ops.one_hot(ids, 11)),  # the audited layer itself
    ],
)
def test_what_may_mix_positions_inside_does_not_count_as_an_embedding(make):
    with pytest.raises(ValueError, match="Received: no layer that maps integers to vectors"):
        assert_causal(make(), inputs=np.arange(8)[None])


def test_a_mask_that_an_embedding_attaches_reaches_the_next_layer_in_the_gradient_check():
    class CausalWithMask(layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            return x if mask is not None else ops.flip(x, axis=1)

    model = keras.Sequential([layers.ReversibleEmbedding(11, 4, mask_zero=True), CausalWithMask()])
    assert assert_causal(model).max_gradient == 0


def test_an_embedding_used_twice_is_probed_twice():
    ids = keras.Input((None,), dtype="int32")
    embedding = layers.Embedding(11, 4, name="tokens")
    x = layers.Concatenate()([embedding(ids), Ahead(strength=1e-8)(embedding(ids))])
    report = causality_report(keras.Model(ids, x))
    assert report.embeddings == ("tokens", "tokens")
    assert report.max_gradient > 0
