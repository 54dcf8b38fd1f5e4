"""Adaptive embedding and softmax as Keras layers; `tests/ops/test_adaptive_vocabulary.py` tests their values."""

import keras
import numpy as np
import pytest

from tests.contracts import to_numpy
from tf_sparse_attention.layers import AdaptiveEmbedding, AdaptiveSoftmax

WORDS = np.array([[0, 3, 9, 39], [20, 8, 7, 21]])


def test_embeddings_of_a_cluster_have_its_size_and_variance_one():
    embedding = AdaptiveEmbedding(4000, 64, cutoffs=(1000, 2000), div_value=4, seed=0)
    assert [tuple(weight.shape) for weight in embedding.weights] == [
        (1000, 64), (64, 64), (1000, 16), (16, 64), (2000, 4), (4, 64)
    ]  # fmt: skip
    for words in (np.arange(1000), np.arange(1000, 2000), np.arange(2000, 4000)):
        assert np.var(to_numpy(embedding(words[None]))) == pytest.approx(1, rel=0.35)


def test_an_id_that_is_no_word_gives_no_number():
    embedding = AdaptiveEmbedding(50, 16, cutoffs=(10, 20))
    softmax = AdaptiveSoftmax(embedding=embedding)
    words = np.array([[0, 9, 10, 49, 50, 99, -1]])
    right = words[0] == np.clip(words[0], 0, 49)
    vectors = np.asarray(embedding(words))
    np.testing.assert_array_equal(np.isfinite(vectors[0]).all(-1), right)
    np.testing.assert_array_equal(np.isfinite(softmax.loss(np.ones((1, 7, 16), "float32"), words)[0]), right)


def test_ids_given_as_floats_keep_their_number_in_half_precision():
    embedding = AdaptiveEmbedding(1000, 16, cutoffs=(10,), dtype="mixed_bfloat16")
    words = np.array([[301, 303, 999]])
    np.testing.assert_array_equal(embedding(words.astype("float32")), embedding(words))


def test_id_zero_is_padding_where_wanted(tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    embedded = AdaptiveEmbedding(50, 16, cutoffs=(10,), mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(embedded))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(np.array([[3, 30, 0, 0]])), model(np.array([[3, 30]])), rtol=1e-6)


def test_half_precision_keeps_probabilities_in_float32():
    embedding = AdaptiveEmbedding(40, 8, cutoffs=(8, 20), div_value=2, dtype="mixed_bfloat16")
    softmax = AdaptiveSoftmax(embedding=embedding, dtype="mixed_bfloat16")
    x = embedding(WORDS)
    assert keras.backend.standardize_dtype(x.dtype) == "bfloat16"
    for result in (softmax(x), softmax.loss(x, WORDS)):
        assert keras.backend.standardize_dtype(result.dtype) == "float32" and np.all(np.isfinite(result))
