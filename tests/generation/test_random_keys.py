"""Random numbers from keys: the published generator, one key a row, and numbers that are evenly spread."""

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.generation import fold_in, row_keys
from tf_sparse_attention.generation.random_keys import threefry, uniform

ONES = 2**32 - 1


def array(tensor):
    return ops.convert_to_numpy(tensor)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers_of_its_authors(key, counter, expected):
    words = (ops.convert_to_tensor(word, dtype="uint32") for word in (*key, *counter))
    assert tuple(int(array(word)) for word in threefry(*words)) == expected


def test_rows_have_keys_of_their_seed_and_place_whatever_the_batch():
    np.testing.assert_array_equal(array(row_keys(7, 3)), [[7, 0], [7, 1], [7, 2]])
    np.testing.assert_array_equal(array(row_keys(7, 2)), array(row_keys(7, 3))[:2])
    np.testing.assert_array_equal(array(row_keys(np.array([5, 7, 5]), 3)), [[5, 0], [7, 0], [5, 0]])
    keys = np.array([[1, 2], [3, 4]], "uint32")
    np.testing.assert_array_equal(array(row_keys(keys, 2)), keys)


@pytest.mark.parametrize("seed", [-1, ONES, 2**40 + ONES, np.int64(-1), np.array(-1, "int32")])
def test_seeds_count_modulo_two_to_the_32(seed):
    np.testing.assert_array_equal(array(row_keys(seed, 1)), [[ONES, 0]])


def test_keys_of_positions_differ_and_depend_on_their_row_alone():
    keys = np.concatenate([array(fold_in(row_keys(1, 50), np.full(50, at))) for at in range(50)])
    assert len(np.unique(keys, axis=0)) == 2500
    np.testing.assert_array_equal(keys[50 * 3 + 4], array(fold_in(row_keys(1, 50)[4:5], np.array([3])))[0])


def test_numbers_are_even_and_never_0_or_1():
    numbers = array(uniform(row_keys(3, 4), 50_000))
    assert numbers.shape == (4, 50_000)
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    # Four standard deviations of a count of 5,000 with probability 1/10.
    counts = np.stack([np.histogram(row, bins=10, range=(0, 1))[0] for row in numbers])
    assert np.abs(counts - 5000).max() < 4 * np.sqrt(5000 * 0.9)
    assert np.abs(np.corrcoef(numbers) - np.eye(4)).max() < 0.02
    np.testing.assert_array_equal(array(uniform(row_keys(3, 4), 5)), numbers[:, :5])
