"""Online k-means on hand-worked cases: revival, commitment and dtypes."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.shapes import argmax_last_axis


def numbers(x):
    return ops.convert_to_numpy(x)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_statistics_and_scores_are_float32_at_least():
    for dtype, expected in (("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")):
        assert keras.backend.standardize_dtype(kmeans.normalize(ops.ones((1, 4), dtype=dtype)).dtype) == expected


def full_and_unused():
    """Two heads of four centroids; 1 and 3 of the first are unused, and nothing of the second."""
    counts = np.array([[4.0, 0.5, 8.0, 0.25], [1.0, 2.0, 3.0, 4.0]], "float32")
    directions = draw(2, 4, 6)
    sums = directions * counts[..., None]
    unused = np.array([[0, 100, 3, 250], [0, 0, 99, 0]], "int32")
    return kmeans.State(kmeans.compute_centroids(sums, counts), sums, counts, unused), directions


def test_the_ith_unused_centroid_splits_the_ith_largest():
    state, directions = full_and_unused()
    noise = 0.1 * draw(2, 4, 6, seed=1)
    new = kmeans.revive(state, 100, noise)
    # Fullest first: 2 (8 tokens) and 0 (4 tokens) are split by 1 and 3.
    np.testing.assert_allclose(numbers(new.counts)[0], [2, 4, 4, 2], rtol=1e-6)
    np.testing.assert_allclose(numbers(new.sums)[0, 2], 4 * directions[0, 2], rtol=1e-5)
    np.testing.assert_allclose(numbers(new.sums)[0, 1], 4 * (directions[0, 2] + noise[0, 1]), rtol=1e-5)
    np.testing.assert_allclose(numbers(new.sums)[0, 0], 2 * directions[0, 0], rtol=1e-5)
    np.testing.assert_allclose(numbers(new.sums)[0, 3], 2 * (directions[0, 0] + noise[0, 3]), rtol=1e-5)
    np.testing.assert_allclose(numbers(new.centroids)[0, 1], directions[0, 2] + noise[0, 1], rtol=1e-3, atol=1e-4)
    assert numbers(new.unused)[0].tolist() == [0, 0, 3, 0]
    for before, after in zip(state, new, strict=True):  # the second head has no unused centroid
        np.testing.assert_array_equal(numbers(before)[1], numbers(after)[1])


def test_no_centroid_is_revived_without_one_to_split():
    state, _ = full_and_unused()
    for unused, counts in (
        ([100, 100, 100, 100], state.counts),  # nobody is in use
        ([100, 100, 100, 0], state.counts * np.array([1, 1, 1, 0], "float32")),  # the one in use is empty
    ):
        alone = state._replace(unused=np.tile(np.array(unused, "int32"), (2, 1)), counts=counts)
        for before, after in zip(alone, kmeans.revive(alone, 100, draw(2, 4, 6, seed=1)), strict=True):
            np.testing.assert_array_equal(numbers(before), numbers(after))


def test_the_commitment_is_the_mean_square_distance_to_the_own_centroid():
    x, centroids = np.array([[[[1, 0], [0, 3]]]], "float32"), np.array([[[0, 0], [0, 1]]], "float32")
    clusters = np.array([[[0, 1]]], "int32")
    assert float(kmeans.commitment(x, clusters, centroids)) == (1 + 4) / 4
    assert float(kmeans.commitment(x, clusters, centroids, np.array([[True, False]]))) == 1 / 2
    assert float(kmeans.commitment(x, clusters, centroids, np.array([[False, False]]))) == 0
    assert float(kmeans.commitment(x[:0], clusters[:0], centroids)) == 0
    # Each row counts alike, however many tokens it has.
    pair, mask = np.concatenate([x, x]), np.array([[True, True], [False, True]])
    assert float(kmeans.commitment(pair, np.concatenate([clusters] * 2), centroids, mask)) == (5 / 4 + 4 / 2) / 2


def test_no_more_are_revived_than_can_be_split():
    state, _ = full_and_unused()
    alone = state._replace(unused=np.array([[100, 0, 100, 100], [0] * 4], "int32"))
    new = kmeans.revive(alone, 100, np.zeros((2, 4, 6), "float32"))
    # 1 is the only one in use: the first unused takes half of it, the others wait.
    np.testing.assert_allclose(numbers(new.counts)[0], [0.25, 0.25, 8, 0.25], rtol=1e-6)
    assert numbers(new.unused)[0].tolist() == [0, 0, 100, 100]


def test_of_equal_scores_the_lowest_group_is_the_best_and_zeros_have_no_sign():
    best = argmax_last_axis(ops.convert_to_tensor([[1, 2, 2], [0, 0, 0], [-0.0, 0.0, -1.0], [-np.inf] * 3], "float32"))
    assert best.dtype == "int32" and numbers(best).tolist() == [1, 0, 0, 0]
