"""Evaluation batches score every token exactly once, whatever the windows, shards and overlaps."""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.draws import draws
from tf_sparse_attention.data import distribute_batches, evaluation_batches


def scored(dataset):
    """Targets of weight 1, in order."""
    return np.concatenate([targets.numpy()[weights.numpy() > 0] for _, targets, weights in dataset])


@given(length=st.integers(1, 70), batch_size=st.integers(1, 5), seed=st.integers(0, 2))
@settings(draws(5, 15), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_targets_of_weight_one_are_exactly_the_token_stream(length, batch_size, seed, random_store):
    store = random_store(count=6, longest=30, seed=seed)
    np.testing.assert_array_equal(scored(evaluation_batches(store, batch_size, length)), store.tokens)


def test_every_batch_has_the_same_static_shape(random_store):
    dataset = evaluation_batches(random_store(), 4, 50)
    inputs, targets, weights = dataset.element_spec
    for spec in (*inputs.values(), targets, weights):
        assert spec.shape == (4, 50)
    assert set(evaluation_batches(random_store(), 4, 50, use_packing=False).element_spec[0]) == {
        "token_ids",
        "padding_mask",
    }


def test_the_number_of_batches_is_known(make_store):
    store = make_store([b"x" * 99])
    assert evaluation_batches(store, 3, 10).cardinality().numpy() == 4  # 10 windows
    assert len(list(evaluation_batches(store, 3, 10))) == 4


def test_rows_that_fill_the_last_batch_have_no_weight(make_store):
    *_, (inputs, targets, weights) = evaluation_batches(make_store([b"x" * 99]), 3, 10)
    assert weights.numpy().sum(axis=1).tolist() == [10, 0, 0]
    assert not targets.numpy()[1:].any() and not inputs["segment_ids"].numpy()[1:].any()


@pytest.mark.parametrize(("num_shards", "num_parts"), [(2, 1), (1, 4), (2, 2), (4, 1)])
def test_shards_joined_score_every_token_once(num_shards, num_parts, random_store):
    store = random_store()
    whole = list(evaluation_batches(store, 4, 16))
    shards = [
        list(evaluation_batches(store, 4, 16, num_shards=num_shards, shard_index=index, num_parts=num_parts))
        for index in range(num_shards)
    ]
    for number, (_, targets, _) in enumerate(whole):
        parts = [part for shard in shards for part in shard[number * num_parts : (number + 1) * num_parts]]
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), targets)
    assert {len(shard) for shard in shards} == {len(whole) * num_parts}


def test_some_windows_are_spread_over_the_text(random_store):
    store = random_store()
    windows = [store.tokens[start : start + 16] for start in range(0, store.num_tokens, 16)]
    picked = [windows[place * len(windows) // 5] for place in range(5)]
    np.testing.assert_array_equal(scored(evaluation_batches(store, 4, 16, max_windows=5)), np.concatenate(picked))
    assert len(windows) > 10 and not np.array_equal(picked[1], windows[1])


def test_more_windows_than_there_are_is_the_whole_text(random_store):
    store = random_store()
    np.testing.assert_array_equal(scored(evaluation_batches(store, 4, 16, max_windows=10**6)), store.tokens)


def test_replicas_of_a_strategy_score_every_token_once(two_replicas, random_store):
    store = random_store()
    dataset = distribute_batches(two_replicas, functools.partial(evaluation_batches, store, 4, 16))
    rows = [
        value.numpy()[weight.numpy() > 0]
        for _, targets, weights in dataset
        for value, weight in zip(
            two_replicas.experimental_local_results(targets),
            two_replicas.experimental_local_results(weights),
            strict=True,
        )
    ]
    np.testing.assert_array_equal(np.concatenate(rows), store.tokens)


@pytest.mark.parametrize("arguments", [{"sequence_length": 0}, {"sequence_length": 8, "max_windows": 0}])
def test_sizes_must_be_positive(arguments, random_store):
    name = list(arguments)[-1]
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive integer. Received: {name}=0"):
        evaluation_batches(random_store(), 4, **arguments)


@given(length=st.integers(2, 40), share=st.floats(0, 0.99), batch_size=st.integers(1, 5), seed=st.integers(0, 2))
@settings(draws(5, 15), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overlapping_windows_score_every_token_once(length, share, batch_size, seed, random_store):
    store = random_store(count=6, longest=30, seed=seed)
    batches = evaluation_batches(store, batch_size, length, overlap=int(share * length))
    np.testing.assert_array_equal(scored(batches), store.tokens)


def test_every_token_but_the_first_ones_sees_what_overlaps(make_store):
    store = make_store([bytes(range(97, 123))])
    (inputs, targets, weights), *_ = evaluation_batches(store, 3, 10, overlap=6)
    np.testing.assert_array_equal(targets[1], store.tokens[4:14])
    np.testing.assert_array_equal(inputs["token_ids"][1, 1:], store.tokens[4:13])
    assert weights.numpy().tolist() == [[1] * 10, [0] * 6 + [1] * 4, [0] * 6 + [1] * 4]


def test_a_text_within_one_window_needs_no_second_one(make_store):
    store = make_store([b"x" * 9])
    assert evaluation_batches(store, 1, 10, overlap=9).cardinality().numpy() == 1
    assert evaluation_batches(store, 1, 10, overlap=0).cardinality().numpy() == 1
    assert evaluation_batches(store, 1, 9, overlap=8).cardinality().numpy() == 2


def test_an_evaluation_goes_on_from_any_batch(random_store):
    store = random_store()
    whole = list(evaluation_batches(store, 2, 16, overlap=5))
    for first, count in ((0, 2), (1, 2), (len(whole) - 1, 4), (len(whole), 1)):
        part = list(evaluation_batches(store, 2, 16, overlap=5, first_batch=first, num_batches=count))
        assert len(part) == len(whole[first : first + count])
        for ours, theirs in zip(part, whole[first : first + count], strict=True):
            np.testing.assert_array_equal(ours[1], theirs[1])
            np.testing.assert_array_equal(ours[2], theirs[2])


@pytest.mark.parametrize(("overlap", "mask_rate"), [(-1, 0.0), (10, 0.0), (3, 0.1)])
def test_a_wrong_overlap_is_named(overlap, mask_rate, random_store):
    with pytest.raises(ValueError, match="`overlap` must be 0"):
        evaluation_batches(random_store(), 2, 10, overlap=overlap, mask_rate=mask_rate)
