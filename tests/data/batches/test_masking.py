"""Hidden tokens: which ones, and what a model reads and has to say."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import TrainingBatches, evaluation_batches, pack_masked
from tf_sparse_attention.data.batches.masking import hidden_positions


def test_hidden_tokens_become_zero_and_are_the_only_targets():
    tokens = np.array([[5, 6, 1, 7, 8, 0]], "int32")
    hidden = np.array([[True, False, False, True, False, True]])
    inputs, targets, weights = pack_masked(tokens, hidden)
    assert inputs["token_ids"].tolist() == [[0, 6, 1, 0, 8, 0]]
    assert inputs["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 0]]
    assert inputs["padding_mask"].tolist() == [[True] * 5 + [False]]
    assert targets.tolist() == [[5, 0, 0, 7, 0, 0]]
    assert weights.tolist() == [[1, 0, 0, 1, 0, 0]]


def test_places_depend_on_the_seed_and_the_window_alone():
    together = hidden_positions([3, 4, 5], 50, 0.3, seed=1)
    np.testing.assert_array_equal(together[1], hidden_positions([4], 50, 0.3, seed=1)[0])
    assert np.any(together[1] != together[2])
    assert np.any(together != hidden_positions([3, 4, 5], 50, 0.3, seed=2))
    assert np.mean(hidden_positions(range(100), 200, 0.15)) == pytest.approx(0.15, abs=0.01)


def test_a_step_hides_the_same_however_its_rows_are_divided(random_store):
    batches = TrainingBatches(random_store(), 4, 32, seed=2, mask_rate=0.2)
    whole = batches.batch(5)
    halves = [next(iter(batches.dataset(5, 1, num_shards=2, shard_index=shard))) for shard in range(2)]
    joined = tf.nest.map_structure(lambda *rows: np.concatenate(rows), *halves)
    for actual, expected in zip(tf.nest.flatten(joined), tf.nest.flatten(whole), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert 0 < whole[2].sum() < 0.5 * whole[2].size


def test_the_same_window_has_other_hidden_places_in_another_epoch(make_store):
    batches = TrainingBatches(make_store([b"abcdefghijklmnopqrstuvwxyzabcde"]), 1, 32, mask_rate=0.3)
    assert batches.num_windows == 1
    assert np.any(batches.batch(0)[2] != batches.batch(1)[2])


def test_an_evaluation_hides_the_same_each_time(random_store):
    store = random_store()
    dataset = evaluation_batches(store, 2, 32, mask_rate=0.2)
    first, second = ([weights.numpy() for _, _, weights in dataset] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    share = sum(weights.sum() for weights in first) / store.num_tokens
    assert share == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_wrong_rate_is_an_error(random_store, rate):
    with pytest.raises(ValueError, match=r"`mask_rate` must be a number in \[0, 1\)"):
        TrainingBatches(random_store(), 2, 8, mask_rate=rate)
