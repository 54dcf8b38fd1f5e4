"""What the causality audit feeds to a target, and what of it varies."""

import keras
import numpy as np
import pytest
from keras import layers

from tests.analysis.causality.audited_layers import attention, dictionary_model, language_model
from tf_sparse_attention.analysis.causality.inputs import AuditInputs, make_inputs


def made(target, vocabulary_size=None):
    parts = target._flatten_layers() if isinstance(target, keras.Layer) else []
    return make_inputs(target, parts, (2, 6, 5), vocabulary_size, np.random.default_rng(0))


def test_replacing_changes_every_later_token_and_no_earlier_one():
    inputs = AuditInputs(np.arange(12).reshape(2, 6), vocabulary_size=20)
    for repeat in (False, True):
        (ids,) = inputs.replace_from(2, np.random.default_rng(0), repeat)
        np.testing.assert_array_equal(ids[:, :2], inputs.arrays[0][:, :2])
        assert (ids[:, 2:] != inputs.arrays[0][:, 2:]).sum() >= 6
        assert ids.min() >= 0 and ids.max() < 20
    (ids,) = inputs.replace_from(2, np.random.default_rng(0))
    assert (ids[:, 2:] != inputs.arrays[0][:, 2:]).all() and (ids[:, 2:] > 0).all()


@pytest.mark.parametrize("vocabulary_size", [2, 3])
def test_the_smallest_vocabularies_leave_another_token_for_each(vocabulary_size):
    inputs = AuditInputs(np.array([[0, 1, 0, 1], [1, 1, 0, 0]]), vocabulary_size)
    (ids,) = inputs.replace_from(1, np.random.default_rng(0))
    changed = ids[:, 1:] != inputs.arrays[0][:, 1:]
    assert changed.all()
    assert ids.min() >= 0 and ids.max() < vocabulary_size


def test_a_repeated_draw_fills_the_suffix_with_one_token():
    tokens = AuditInputs(np.arange(12).reshape(2, 6)).replace_from(3, np.random.default_rng(0), repeat=True)[0]
    vectors = AuditInputs(np.zeros((2, 6, 3))).replace_from(3, np.random.default_rng(0), repeat=True)[0]
    for array in (tokens, vectors):
        np.testing.assert_array_equal(array[:, 3:], np.repeat(array[:, 3:4], 3, axis=1))
    assert (vectors[:, 3:] != 0).all() and (vectors[:, :3] == 0).all()


def test_masks_segments_and_positions_are_held():
    ids = np.ones((2, 4), "int32")
    batch = {"token_ids": ids, "padding_mask": ids, "segment_ids": ids, "position_ids": ids, "causal": ids > 0}
    inputs = AuditInputs(batch, vocabulary_size=9)
    changed = inputs.pack(inputs.replace_from(1, np.random.default_rng(0)))
    assert [name for name, array in changed.items() if (array != batch[name]).any()] == ["token_ids"]


def test_inputs_follow_those_of_a_functional_model():
    inputs = made(dictionary_model())
    batch = inputs.pack(inputs.arrays)
    assert inputs.batch_and_length == (2, 6)
    np.testing.assert_array_equal(batch["padding_mask"], np.ones((2, 6)))
    assert batch["token_ids"].min() >= 1 and batch["token_ids"].max() < 11


def test_positions_count_up_and_segments_are_one():
    specs = [keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "position_ids", "segment_ids")]
    model = keras.Model(specs, layers.Add()([layers.Embedding(9, 4)(spec) for spec in specs]))
    _, positions, segments = made(model).arrays
    np.testing.assert_array_equal(positions, [[0, 1, 2, 3, 4, 5]] * 2)
    np.testing.assert_array_equal(segments, np.zeros((2, 6)))


def test_a_fixed_batch_and_length_are_kept():
    ids = keras.Input(batch_shape=(3, 9), dtype="int32")
    assert made(keras.Model(ids, layers.Embedding(9, 4)(ids))).arrays[0].shape == (3, 9)


def test_images_keep_their_last_axes():
    image = keras.Input((None, 7, 3))
    assert made(keras.Model(image, layers.Dense(2)(image))).arrays[0].shape == (2, 6, 7, 3)


def test_a_float_input_of_rank_two_takes_tokens_where_they_are_embedded():
    ids = keras.Input((None,))
    inputs = made(keras.Model(ids, layers.Embedding(9, 4)(ids)))
    assert inputs.is_tokens == [True] and inputs.arrays[0].dtype == "int32"


def test_a_sequential_model_not_built_takes_tokens_where_it_embeds():
    assert made(keras.Sequential([layers.Embedding(9, 4), layers.Dense(3)])).is_tokens == [True]
    assert made(keras.Sequential([layers.Dense(3)])).arrays[0].shape == (2, 6, 5)


def test_a_built_layer_that_embeds_positions_takes_vectors_of_its_own_size():
    class Positioned(layers.Layer):
        def __init__(self):
            super().__init__()
            self.positions = layers.Embedding(9, 8)

        def build(self, shape):
            self.positions.build((None,))

    layer = Positioned()
    layer.build((None, None, 8))
    assert made(layer).arrays[0].shape == (2, 6, 8)


def test_a_layer_built_on_rank_two_takes_vectors_of_its_size():
    layer = layers.Dense(3)
    layer.build((None, 8))
    assert made(layer).arrays[0].shape == (2, 6, 8)


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
