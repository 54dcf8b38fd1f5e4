"""Heads of several patterns in one attention."""

import keras
import numpy as np
import pytest

from tests.contracts import SIZE, assert_close, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import GlobalLocalAttention, LocalAttention, MixedAttention, RoutingAttention

X = normal(2, 9, SIZE)


def local(**own):
    return LocalAttention(**{"num_heads": 2, "key_dim": 4, "window": 3, **own})


def routing(**own):
    return RoutingAttention(**{"num_heads": 1, "key_dim": 4, "num_clusters": 3, "cluster_size": 4, **own})


def ready(layer):
    layer.build(X.shape)
    return with_random_weights(layer)


def test_only_the_first_part_has_an_output_bias():
    layer = ready(MixedAttention([local(), routing(), local(use_bias=False)]))
    names = ["attention_output/bias" in "".join(weight.path for weight in part.weights) for part in layer.parts]
    assert names == [True, False, False]


def test_parts_compute_in_their_own_dtypes_and_the_sum_has_that_of_the_layer():
    parts = [local(dtype="mixed_bfloat16"), routing(dtype="float32"), local(dtype="float64")]
    layer = MixedAttention(parts, dtype="bfloat16")
    symbolic = layer(keras.Input((None, SIZE)), return_attention_scores=True)
    results = layer(X, return_attention_scores=True)
    for tensor in (*symbolic, *results):
        assert keras.backend.standardize_dtype(tensor.dtype) == "bfloat16"
    assert [part.compute_dtype for part in layer.parts] == ["bfloat16", "float32", "float64"]


def test_projections_of_a_dense_layer_are_copied_into_a_mixture():
    parts = [GlobalLocalAttention(1, 4, window=20, num_first_global=1, own_projections=True, name="near")]
    layer = MixedAttention([*parts, LocalAttention(1, 4, window=20, name="far")])
    dense = keras.layers.MultiHeadAttention(2, 4)
    expected = to_numpy(dense(X, X))
    layer.copy_projections(dense)
    assert_close(layer(X), expected, 1e-5)
    with pytest.raises(ValueError, match="`attention` must have 2 heads, the total of all parts"):
        layer.copy_projections(keras.layers.MultiHeadAttention(3, 4))
    with pytest.raises(ValueError, match="`attention` must have one projection per name"):
        LocalAttention(2, 4).copy_projections(layer)


def test_an_extra_mask_reaches_only_the_part_that_accepts_it():
    layer = ready(MixedAttention([local(), GlobalLocalAttention(2, 4, window=3, own_projections=True)]))
    marks = np.arange(9) % 4 == 1
    marks = np.stack([marks, ~marks])
    _, weights = layer(X, global_mask=marks, return_attention_scores=True)
    near, wide = (
        part(X, return_attention_scores=True, **own)
        for part, own in zip(layer.parts, ({}, {"global_mask": marks}), strict=True)
    )
    assert_close(to_numpy(weights), np.concatenate([to_numpy(near[1]), to_numpy(wide[1])], axis=1), 0)
    seen = to_numpy(layer.attention_pattern(X, global_mask=marks))
    np.testing.assert_array_equal(seen, to_numpy(weights) > 0)
    assert layer.extra_mask_names == ("global_mask",)
