"""Windows of a token stream: random in training, each token once in evaluation, with masked tokens."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.memory import elements
from tests.draws import draws
from tf_sparse_attention.data import evaluation_batches, pack_masked, pack_windows, training_batches
from tf_sparse_attention.data.batches.windows import random_offset

A, B, C, END = 99, 100, 101, 1


def test_every_window_of_an_epoch_is_visited_once(random_store):
    store = random_store()
    batches, num_windows = training_batches(store, 4, 16, seed=3), store.num_tokens // 16
    stream = np.concatenate([store.tokens, store.tokens])
    found = []
    for epoch in (0, 1):
        offset = random_offset(store, 3, epoch)
        expected = [stream[(offset + 16 * window) % store.num_tokens :][:16].tolist() for window in range(num_windows)]
        first, last = epoch * num_windows, (epoch + 1) * num_windows
        targets = np.concatenate([batches[step][1] for step in range(last // 4 + 1)])[first:last]
        found.append(targets.tolist())
        assert sorted(found[epoch]) == sorted(expected)
    assert sorted(found[0]) != sorted(found[1]) and found[0] != sorted(found[0])
    # An epoch has all tokens except for those of an incomplete window.
    missing = np.bincount(store.tokens, minlength=258) - np.bincount(np.ravel(found[0]), minlength=258)
    assert missing.min() >= 0 and missing.sum() == store.num_tokens % 16
    again, other = (training_batches(random_store(), 4, 16, seed=seed)[5][1] for seed in (3, 2))
    np.testing.assert_array_equal(again, batches[5][1])
    assert (other != again).any()


def test_a_stream_shorter_than_a_window_is_one_padded_window(make_store):
    store = make_store([b"ab", b"c"])
    batches = training_batches(store, batch_size=3, sequence_length=8)
    inputs, targets, weights = batches[0]
    assert batches.steps_per_epoch == 1 and "padding_mask" in inputs
    for row, row_weights in zip(targets, weights, strict=True):
        assert row_weights.tolist() == [1] * 5 + [0] * 3
        assert sorted(row) == sorted([*store.tokens, 0, 0, 0])


def scored(batches):
    """Targets of weight 1, in order."""
    return np.concatenate([targets[weights > 0] for _, targets, weights in elements(batches)])


@given(length=st.integers(1, 70), share=st.floats(0, 0.99), batch_size=st.integers(1, 5), seed=st.integers(0, 2))
@settings(draws(8, 30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_targets_of_weight_one_are_exactly_the_token_stream(length, share, batch_size, seed, random_store):
    store = random_store(count=6, longest=30, seed=seed)
    for overlap in (0, int(share * length)):
        np.testing.assert_array_equal(
            scored(evaluation_batches(store, batch_size, length, overlap=overlap)), store.tokens
        )


def test_a_text_within_one_window_needs_no_second_window_whatever_the_overlap(make_store):
    store = make_store([b"x" * 9])
    for length, overlap, count in [(10, 9, 1), (10, 0, 1), (9, 8, 2)]:
        assert evaluation_batches(store, 1, length, overlap=overlap).num_batches == count


def test_max_windows_are_spread_over_the_stream(random_store):
    store = random_store()
    windows = [store.tokens[start : start + 16] for start in range(0, store.num_tokens, 16)]
    picked = [windows[place * len(windows) // 5] for place in range(5)]
    np.testing.assert_array_equal(scored(evaluation_batches(store, 4, 16, max_windows=5)), np.concatenate(picked))
    assert len(windows) > 10 and not np.array_equal(picked[1], windows[1])
    np.testing.assert_array_equal(scored(evaluation_batches(store, 4, 16, max_windows=10**6)), store.tokens)


def test_tokens_after_the_first_window_see_the_overlap(make_store):
    store = make_store([bytes(range(97, 123))])
    inputs, targets, weights = evaluation_batches(store, 3, 10, overlap=6)[0]
    np.testing.assert_array_equal(targets[1], store.tokens[4:14])
    np.testing.assert_array_equal(inputs["token_ids"][1, 1:], store.tokens[4:13])
    assert weights.tolist() == [[1] * 10, [0] * 6 + [1] * 4, [0] * 6 + [1] * 4]


def packed(row, **arguments):
    inputs, targets, weights = pack_windows(np.array([row], "int32"), **arguments)
    assert inputs.pop("padding_mask")[0].tolist() == [token != 0 for token in row]
    return {name: value[0].tolist() for name, value in {**inputs, "targets": targets, "w": weights}.items()}


def test_documents_of_a_window_are_segments_without_context_by_hand(subtests):
    for row, expected in [
        (
            [A, B, END, C, END, 0],
            {"token_ids": [0, A, B, 0, C, 0], "segment_ids": [1, 1, 1, 2, 2, 0], "w": [1, 1, 1, 1, 1, 0]},
        ),
        ([B, END, C], {"token_ids": [0, B, 0], "segment_ids": [1, 1, 2], "w": [1, 1, 1]}),  # begins in a document
        ([END, END, C], {"token_ids": [0, 0, 0], "segment_ids": [1, 2, 3], "w": [1, 1, 1]}),  # empty documents
        ([0, 0], {"token_ids": [0, 0], "segment_ids": [0, 0], "w": [0, 0]}),
    ]:
        with subtests.test(row=row):
            assert packed(row) == {**expected, "targets": row}
    # Without packing, there are no segments and the end id is an input.
    assert packed([A, END, C, END, 0], use_packing=False) == {
        "token_ids": [0, A, END, C, 0],
        "targets": [A, END, C, END, 0],
        "w": [1, 1, 1, 1, 0],
    }


def test_masked_tokens_become_zero_and_are_the_only_targets():
    tokens = np.array([[5, 6, 1, 7, 8, 0]], "int32")
    is_masked = np.array([[True, False, False, True, False, True]])
    inputs, targets, weights = pack_masked(tokens, is_masked)
    assert inputs["token_ids"].tolist() == [[0, 6, 1, 0, 8, 0]]
    assert inputs["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 0]]
    assert inputs["padding_mask"].tolist() == [[True] * 5 + [False]]
    assert targets.tolist() == [[5, 0, 0, 7, 0, 0]]
    assert weights.tolist() == [[1, 0, 0, 1, 0, 0]]


def test_training_masks_change_with_the_epoch_and_those_of_an_evaluation_do_not(make_store, random_store):
    batches = training_batches(make_store([b"abcdefghijklmnopqrstuvwxyzabcde"]), 1, 32, mask_rate=0.3)
    assert batches.steps_per_epoch == 1
    assert np.any(batches[0][2] != batches[1][2])
    store = random_store()
    first, second = (elements(evaluation_batches(store, 2, 32, mask_rate=0.2)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[2], other[2])
    assert sum(weights.sum() for *_, weights in first) / store.num_tokens == pytest.approx(0.2, abs=0.05)


def test_invalid_arguments_are_errors(random_store, subtests):
    both = [
        ("batch_size", {"batch_size": 0}),
        ("sequence_length", {"sequence_length": 0}),
        ("mask_rate", {"mask_rate": 1.0}),
        ("mask_rate", {"mask_rate": -0.1}),
    ]
    training = [("seed", {"seed": -1}), ("seed", {"seed": 2**63})]
    evaluation = [
        ("max_windows", {"max_windows": 0}),
        ("overlap", {"overlap": -1}),
        ("overlap", {"overlap": 10}),
        ("overlap", {"overlap": 3, "mask_rate": 0.1}),
    ]
    for make, cases in [(training_batches, both + training), (evaluation_batches, both + evaluation)]:
        for name, options in cases:
            with subtests.test(make.__name__, options=options), pytest.raises(ValueError, match=f"`{name}`"):
                make(random_store(), **{"batch_size": 2, "sequence_length": 10, **options})
