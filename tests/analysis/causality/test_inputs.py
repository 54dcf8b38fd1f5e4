"""What the causality audit feeds to a target, and what of it varies."""

import keras
import numpy as np
import pytest
from keras import layers

from tests.analysis.causality.audited_layers import attention, language_model
from tf_sparse_attention.analysis.causality.inputs import AuditInputs, make_inputs


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
