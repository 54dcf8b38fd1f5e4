"""What the causality audit feeds to its target, and how it calls it: without a trace, with gradients of embeddings."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.analysis.causality.audited_layers import Ahead, Tracker, attention, language_model
from tf_sparse_attention.analysis import assert_causal, causality_report
from tf_sparse_attention.analysis.causality.inputs import AuditInputs, make_inputs


@pytest.mark.full
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


def made(target, vocabulary_size=None):
    parts = target._flatten_layers() if isinstance(target, keras.Layer) else []
    return make_inputs(target, parts, (2, 6, 5), vocabulary_size, np.random.default_rng(0))


def test_masks_segments_and_positions_are_held():
    ids = np.ones((2, 4), "int32")
    batch = {"token_ids": ids, "padding_mask": ids, "segment_ids": ids, "position_ids": ids, "causal": ids > 0}
    inputs = AuditInputs(batch, vocabulary_size=9)
    changed = inputs.pack(inputs.replace_from(1, np.random.default_rng(0)))
    assert [name for name, array in changed.items() if (array != batch[name]).any()] == ["token_ids"]


def test_positions_count_up_and_segments_are_one():
    specs = [keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "position_ids", "segment_ids")]
    model = keras.Model(specs, layers.Add()([layers.Embedding(9, 4)(spec) for spec in specs]))
    _, positions, segments = made(model).arrays
    np.testing.assert_array_equal(positions, [[0, 1, 2, 3, 4, 5]] * 2)
    np.testing.assert_array_equal(segments, np.zeros((2, 6)))


def test_a_model_takes_tokens_where_it_embeds_its_inputs():
    ids = keras.Input((None,))  # of floats
    inputs = made(keras.Model(ids, layers.Embedding(9, 4)(ids)))
    assert inputs.is_tokens == [True] and inputs.arrays[0].dtype == "int32"
    assert made(keras.Sequential([layers.Embedding(9, 4), layers.Dense(3)])).is_tokens == [True]
    assert made(keras.Sequential([layers.Dense(3)])).arrays[0].shape == (2, 6, 5)


def test_the_vocabulary_is_that_of_the_smallest_table_or_the_targets_own():
    model = language_model(attention())
    assert made(model).vocabulary_size == 11
    assert made(model, vocabulary_size=5).vocabulary_size == 5
    model.vocabulary_size = 7
    assert made(model).vocabulary_size == 7


def test_invalid_inputs_and_vocabularies_are_refused(subtests):
    ids = keras.Input((None,), dtype="int32")
    token_ids, unknown = np.zeros((2, 4), "int32"), keras.Model(ids, keras.ops.one_hot(ids, 5))
    for kind, name, run in [
        ("numbers", "inputs", lambda: AuditInputs(np.zeros((2, 4)), vocabulary_size=9)),
        ("three axes", "inputs", lambda: AuditInputs(np.zeros((2, 4, 3), "int32"), vocabulary_size=9)),
        ("mask alone", "inputs", lambda: AuditInputs({"padding_mask": token_ids}, vocabulary_size=9)),
        ("no batch", "inputs", lambda: AuditInputs(np.zeros(4, "int32"), vocabulary_size=9)),
        ("lengths", "inputs", lambda: AuditInputs([token_ids, token_ids[:, 1:]], vocabulary_size=9)),
        ("rows", "inputs", lambda: AuditInputs([token_ids, token_ids[1:]], vocabulary_size=9)),
        ("one position", "inputs", lambda: AuditInputs([token_ids[:, :1]], vocabulary_size=9)),
        ("one token", "vocabulary_size", lambda: AuditInputs(token_ids, vocabulary_size=1)),
        ("unknown vocabulary", "vocabulary_size", lambda: made(unknown)),
    ]:
        with subtests.test(kind), pytest.raises(ValueError, match=f"`{name}`"):
            run()
