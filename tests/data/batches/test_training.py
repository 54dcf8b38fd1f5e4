"""Training batches are a pure function of seed and step, and visit every window of an epoch once."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_sparse_attention.data import TrainingBatches, distribute_batches


def take(dataset, count):
    return [tf.nest.map_structure(np.asarray, element) for element in dataset.take(count)]


def assert_equal(first, second):
    assert len(first) == len(second) > 0
    for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        np.testing.assert_array_equal(one, other)


def joined(elements):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *elements)


def targets_of_epoch(batches, epoch):
    """Targets of all windows of an epoch, in the order they are visited."""
    first, last = epoch * batches.num_windows, (epoch + 1) * batches.num_windows
    rows = np.concatenate([batches.batch(step)[1] for step in range(last // batches.batch_size + 1)])
    return rows[first:last]


def test_every_window_of_an_epoch_is_visited_once(random_store):
    store = random_store()
    batches = TrainingBatches(store, batch_size=4, sequence_length=16, seed=3)
    stream = np.concatenate([store.tokens, store.tokens])
    for epoch in (0, 1):
        offset = batches._offset(epoch)
        expected = [
            stream[(offset + 16 * window) % store.num_tokens :][:16].tolist() for window in range(batches.num_windows)
        ]
        assert sorted(targets_of_epoch(batches, epoch).tolist()) == sorted(expected)


def test_an_epoch_sees_all_tokens_but_the_rest_of_one_window(random_store):
    store = random_store()
    batches = TrainingBatches(store, 4, 16)
    counts = np.bincount(targets_of_epoch(batches, 0).ravel(), minlength=258)
    missing = np.bincount(store.tokens, minlength=258) - counts
    assert missing.min() >= 0
    assert missing.sum() == store.num_tokens % 16


def test_epochs_differ_in_order_and_in_the_grid(random_store):
    batches = TrainingBatches(random_store(), 4, 16)
    first, second = (targets_of_epoch(batches, epoch).tolist() for epoch in (0, 1))
    assert batches._offset(0) % 16 != batches._offset(1) % 16
    assert sorted(first) != sorted(second)
    assert first != sorted(first)


def test_seeds_differ_and_one_seed_agrees_with_itself(random_store):
    store = random_store()
    first, again, other = (TrainingBatches(store, 4, 16, seed=seed).batch(5) for seed in (1, 1, 2))
    assert_equal([first], [again])
    assert (first[1] != other[1]).any()


@given(start=st.integers(0, 40), seed=st.integers(0, 2**63 - 1), use_packing=st.booleans())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_after_a_restart_equal_the_uninterrupted_ones(start, seed, use_packing, random_store):
    batches = TrainingBatches(random_store(), 4, 16, seed=seed, use_packing=use_packing)
    uninterrupted = take(batches.dataset(), start + 3)[start:]
    again = TrainingBatches(random_store(), 4, 16, seed=seed, use_packing=use_packing)
    assert_equal(take(again.dataset(start_step=start), 3), uninterrupted)
    assert_equal([again.batch(step) for step in range(start, start + 3)], uninterrupted)


def test_going_on_far_away_is_as_cheap_as_starting(random_store):
    batches = TrainingBatches(random_store(), 4, 16)
    assert_equal(take(batches.dataset(start_step=10**15), 1), [batches.batch(10**15)])


@pytest.mark.parametrize(("num_shards", "num_parts"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 3)])
def test_shards_and_parts_joined_are_the_whole_batch(num_shards, num_parts, random_store):
    batches = TrainingBatches(random_store(), 12, 16)
    shards = [
        take(batches.dataset(7, num_shards=num_shards, shard_index=index, num_parts=num_parts), 2 * num_parts)
        for index in range(num_shards)
    ]
    for number, step in enumerate((7, 8)):
        elements = [part for shard in shards for part in shard[number * num_parts : (number + 1) * num_parts]]
        assert_equal([joined(elements)], [batches.batch(step)])


def test_a_number_of_steps_ends_the_data_set(random_store):
    dataset = TrainingBatches(random_store(), 4, 16).dataset(start_step=2, num_steps=3, num_parts=2)
    assert dataset.cardinality().numpy() == 6


def test_shapes_are_static(random_store):
    inputs, targets, weights = TrainingBatches(random_store(), 4, 16).dataset(num_parts=2).element_spec
    for spec in (*inputs.values(), targets, weights):
        assert spec.shape == (2, 16)
    assert set(inputs) == {"token_ids", "segment_ids"}
    assert set(TrainingBatches(random_store(), 4, 16, use_packing=False).dataset().element_spec[0]) == {"token_ids"}


def test_a_stream_shorter_than_a_window_is_one_padded_window(make_store):
    store = make_store([b"ab", b"c"])
    assert "padding_mask" in TrainingBatches(store, 1, 16).dataset().element_spec[0]
    batches = TrainingBatches(store, batch_size=3, sequence_length=8)
    assert (batches.num_windows, batches.steps_per_epoch) == (1, 1)
    for row, weights in zip(batches.batch(0)[1], batches.batch(0)[2], strict=True):
        assert weights.tolist() == [1] * 5 + [0] * 3
        assert sorted(row) == sorted([*store.tokens, 0, 0, 0])


def test_steps_per_epoch_is_rounded_up(make_store):
    assert TrainingBatches(make_store([b"x" * 99]), 3, 10).steps_per_epoch == 4  # 10 windows


def test_replicas_of_a_strategy_get_their_rows_of_one_batch(two_replicas, random_store):
    batches = TrainingBatches(random_store(), 4, 16)
    dataset = distribute_batches(two_replicas, functools.partial(batches.dataset, start_step=3))
    for step, element in zip((3, 4), dataset, strict=False):
        replicas = [two_replicas.experimental_local_results(tensor) for tensor in tf.nest.flatten(element)]
        assert all(len(values) == 2 for values in replicas)
        whole = [np.concatenate(values) for values in replicas]
        assert_equal(whole, tf.nest.flatten(batches.batch(step)))


def test_a_keras_model_fits_on_it(random_store):
    batches = TrainingBatches(random_store(), 4, 16, use_packing=False)
    tokens = keras.Input((16,), name="token_ids", dtype="int32")
    outputs = keras.layers.Dense(258)(keras.layers.Embedding(258, 4)(tokens))
    model = keras.Model({"token_ids": tokens}, outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(batches.dataset(), steps_per_epoch=2, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("sequence_length", 0)])
def test_sizes_must_be_positive(name, value, random_store):
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive integer. Received: {name}=0."):
        TrainingBatches(random_store(), **{"batch_size": 1, "sequence_length": 1, name: value})


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_an_error(seed, random_store):
    with pytest.raises(ValueError, match=rf"`seed` must be in \[0, 2\*\*63\). Received: seed={seed}."):
        TrainingBatches(random_store(), 1, 1, seed=seed)
