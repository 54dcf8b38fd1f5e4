"""What keeps a text from repeating itself, on numbers worked by hand and against slow code."""

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.generation import BeamSearch, Sampling, block_ngrams, get_strategy, penalize_repetition
from tf_sparse_attention.generation.strategies import NAMED
from tf_sparse_attention.ops.attend import lowest

LOGITS = np.array([[2.0, -1.0, 0.5, 3.0, -4.0]], "float32")
LOWEST = lowest("float32")


def test_a_penalty_divides_what_is_positive_and_multiplies_what_is_negative_once():
    inputs, logits = np.array([[0, 3, 4, 3, 0, 0], [0, 0, 2, 4, 4, 4]]), np.tile(LOGITS, (2, 1))
    found = ops.convert_to_numpy(penalize_repetition(logits, inputs, np.array([3, 2]), penalty=2.0))
    # The start id is no token; each row has tokens of its own.
    np.testing.assert_allclose(found, [[2.0, -1.0, 0.5, 1.5, -8.0], [1.0, -1.0, 0.25, 3.0, -4.0]])


def test_a_penalty_looks_back_at_the_window_alone_and_not_ahead():
    inputs = np.array([[0, 3, 4, 1, 2, 2]])
    found = ops.convert_to_numpy(penalize_repetition(LOGITS, inputs, np.array([3]), penalty=2.0, window=2))
    np.testing.assert_allclose(found, [[2.0, -2.0, 0.5, 3.0, -8.0]])


def slowly_blocked(row, size):
    """The ids that would complete an n-gram of a row again."""
    start = tuple(row[len(row) - size + 1 :])
    return {row[at + size - 1] for at in range(len(row) - size + 1) if tuple(row[at : at + size - 1]) == start}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ngrams_are_blocked_as_by_slow_code(size):
    rng = np.random.default_rng(size)
    inputs, index = np.pad(rng.integers(0, 4, (40, 12)), [(0, 0), (1, 0)]), rng.integers(0, 13, 40)
    found = ops.convert_to_numpy(block_ngrams(np.ones((40, 6)), inputs, index, size))
    for row, ids, length in zip(found, inputs, index, strict=True):
        tokens = ids[1 : length + 1].tolist()
        blocked = slowly_blocked(tokens, size) if length >= size else set()
        assert set(np.flatnonzero(row == LOWEST)) == blocked


def test_a_row_of_which_all_is_blocked_is_left_as_it_is():
    found = ops.convert_to_numpy(block_ngrams(np.ones((1, 2)), np.array([[0, 0, 1]]), np.array([2]), size=1))
    np.testing.assert_array_equal(found, [[1, 1]])


def test_names_stand_for_settings():
    assert get_strategy("greedy") == Sampling(temperature=0.0)
    assert get_strategy("beam").num_beams == 4
    assert {name: get_strategy(name) for name in NAMED} == NAMED
    own = get_strategy(slowly_blocked)
    assert own == get_strategy(slowly_blocked)  # one program for each function
    assert (own.sampler(own.values), own.adjust(own.values)) == (slowly_blocked, None)


def test_settings_out_of_range_are_refused(subtests):
    sampling = {"temperature": [-1, "hot", True], "top_k": ["3", 0], "top_p": ["x", 0.0], "min_p": [[0.1], 2]}
    sampling |= {"no_repeat_ngram": [33], "repetition_penalty": [0], "repetition_window": [0]}
    beams = {"no_repeat_ngram": [0], "num_beams": [0], "length_penalty": [-1, float("inf")]}
    for make, settings in ((Sampling, sampling), (BeamSearch, beams)):
        for name, value in ((name, value) for name, values in settings.items() for value in values):
            message = f"`{name}` must be .* Received: {name}="
            with subtests.test(name, value=value), pytest.raises(ValueError, match=message):
                make(**{name: value})
