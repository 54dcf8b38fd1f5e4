"""The decoding loop over step functions that are no models."""

import functools

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.generation import bucket_length, generate, greedy, sample

SIZE = 12
TABLE = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype("float32") * 2
DRAW = functools.partial(sample, temperature=1.5)


def token_at(inputs, index):
    return ops.take_along_axis(inputs, index[:, None], axis=1)[:, 0]


def count_up(inputs, index, state):
    """After id x comes x + 1."""
    return ops.one_hot(token_at(inputs, index) + 1, SIZE), state


def bigram(inputs, index, state):
    return ops.take(ops.convert_to_tensor(TABLE), token_at(inputs, index), axis=0), state


def run(step, prompts, max_length, sampler=greedy, length=None, **settings):
    """Return the rows as lists, and their lengths."""
    buffer = np.zeros((len(prompts), length or np.max(max_length)), "int32")
    for row, prompt in zip(buffer, prompts, strict=True):
        row[: len(prompt)] = prompt
    ids, lengths, _ = generate(step, buffer, [len(prompt) for prompt in prompts], max_length, sampler, **settings)
    ids, lengths = ops.convert_to_numpy(ids), ops.convert_to_numpy(lengths)
    assert ids.shape == buffer.shape
    assert all((row[n:] == 0).all() for row, n in zip(ids, lengths, strict=True))
    return [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]


def test_rows_of_different_lengths_go_on_from_their_own_ends():
    assert run(count_up, [[4], [], [1, 8]], 4) == [[4, 5, 6, 7], [1, 2, 3, 4], [1, 8, 9, 10]]
    assert run(count_up, [[]], 3, start_id=5) == [[6, 7, 8]]
    assert run(count_up, [[4, 9], [3]], 2) == [[4, 9], [3, 4]]  # a prompt as long as allowed
    assert run(count_up, [[1], [1], [1, 2]], np.array([2, 4, 1]), length=6) == [[1, 2], [1, 2, 3, 4], [1, 2]]


def test_a_row_stops_at_the_stop_id_and_keeps_it_while_others_go_on():
    assert run(count_up, [[4], [1]], 5, stop_token_ids=[6]) == [[4, 5, 6], [1, 2, 3, 4, 5]]
    assert run(count_up, [[6, 4]], 5, stop_token_ids=[6]) == [[6, 4, 5, 6]]  # in the prompt it stops nothing


def test_what_lies_behind_a_prompt_does_not_matter_and_lengths_end_with_the_buffer():
    ids, *_ = generate(count_up, [[4, 9, 9, 9]], [1], 3, greedy)
    np.testing.assert_array_equal(ops.convert_to_numpy(ids), [[4, 5, 6, 0]])
    ids, lengths, _ = generate(count_up, [[4, 7]], [3], 2, greedy)
    np.testing.assert_array_equal(ops.convert_to_numpy(ids), [[4, 7]])
    np.testing.assert_array_equal(ops.convert_to_numpy(lengths), [2])


def test_state_goes_from_step_to_step():
    def step(inputs, index, state):
        # A cache that remembers the id read at each position; the next id is the sum of all.
        written = ops.one_hot(index, 5, dtype="int32") * token_at(inputs, index)[:, None]
        cache = {"read": ops.where(written > 0, written, state["read"]), "count": state["count"] + 1}
        return ops.one_hot(ops.sum(cache["read"], axis=1), 40) * ops.cast(cache["count"], "float32"), cache

    state = {"read": np.zeros((1, 5), "int32"), "count": np.int32(0)}
    assert run(step, [[3]], 5, state=state) == [[3, 3, 6, 12, 24]]


def test_samples_are_the_same_on_every_backend():
    expected = [[6, 5, 8, 8, 5, 6, 10, 0, 7, 11], [5, 2, 10, 7, 1, 9, 5, 6, 5, 6]]
    assert run(bigram, [[], [5]], 10, DRAW, seed=1) == expected


def test_a_row_draws_the_same_whatever_its_batch_mates_the_buffer_and_the_length():
    rows = run(bigram, [[3], [5, 6, 7, 8], [2, 2]], 7, DRAW, seed=4)
    assert run(bigram, [[3], [], [2, 2], [9]], 7, DRAW, seed=4, length=9)[::2] == rows[::2]
    assert run(bigram, [[3]], 5, DRAW, seed=4)[0] == rows[0][:5]


def test_rows_with_seeds_of_their_own_may_stand_anywhere():
    rows = run(bigram, [[3], [3], [5]], 6, DRAW, seed=np.array([8, 9, 8]))
    assert run(bigram, [[5], [3]], 6, DRAW, seed=np.array([8, 8])) == [rows[2], rows[0]]
    assert rows[0] != rows[1]


def test_lengths_that_the_buffer_cannot_hold_and_prompts_of_another_rank_are_refused():
    for max_length in (0, 4):
        message = rf"`max_length` must be between 1 and .* Received: max_length={max_length}"
        with pytest.raises(ValueError, match=message):
            generate(count_up, [[1, 0, 0]], [1], max_length, greedy)
    with pytest.raises(ValueError, match="`prompt_ids`"):
        generate(count_up, [1, 0, 0], [1], 3, greedy)


def test_buckets_are_at_most_half_too_long_and_few():
    sizes = {length: bucket_length(length) for length in range(1, 1025)}
    assert all(length <= size for length, size in sizes.items())
    assert all(2 * size < 3 * length for length, size in sizes.items() if length > 64)
    assert sorted(set(sizes.values())) == [64, 96, 128, 192, 256, 384, 512, 768, 1024]


def test_log_probabilities_are_the_steps_own_where_logits_are_adjusted():
    def last_first(logits, inputs, index):
        return logits + 99 * ops.cast(ops.arange(SIZE) == SIZE - 1, "float32")

    rows = generate(bigram, np.zeros((1, 3), "int32"), [0], 3, greedy, adjust=last_first)
    assert ops.convert_to_numpy(rows.token_ids).tolist() == [[SIZE - 1] * 3]
    own = TABLE - np.log(np.exp(TABLE).sum(-1, keepdims=True))
    wanted = [own[0, SIZE - 1], own[SIZE - 1, SIZE - 1], own[SIZE - 1, SIZE - 1]]
    np.testing.assert_allclose(ops.convert_to_numpy(rows.log_probs)[0], wanted, atol=1e-5)
