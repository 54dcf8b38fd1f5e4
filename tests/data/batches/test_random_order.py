"""Random orders: each is a permutation, and orders of different seeds and epochs are independent."""

import numpy as np

from tests.draws import is_full
from tf_sparse_attention.data.batches.random_order import random_order, shuffled_index

# One less and one more than a power of two, of even and odd exponents, and where permutations are not listed.
SIZES = [1, 2, 3, 7, 255, 256, 257, 2**16 - 1, 2**16, 2**16 + 1, 2**16 + 2, 2**17, 2**17 + 1, 2**18, 2**18 + 1]
FURTHER = [2**18 - 1, 2**20 - 1, 2**20, 2**20 + 1, 2**22 + 1]
OTHERS = [(1, 0), (2, 0), (256, 0), (2**32, 0), (2**63 - 1, 0), (0, 1), (0, 2), (0, 256), (0, 2**32), (1, 1)]


def aligned(ours, theirs):
    """Return the largest number of items that two orders have at one distance, of positions or of values."""
    count = len(ours)
    places = np.bincount((np.argsort(theirs)[ours] - np.arange(count)) % count)
    values = np.bincount((theirs - ours) % count)
    return max(places.max(), values.max())


def assert_independent(ours, theirs):
    assert sorted(theirs.tolist()) == list(range(len(ours)))
    # Of 2,000 pairs of independent orders none had more than 10; a shifted copy has thousands.
    assert aligned(ours, theirs) < 12
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 4.5 * len(ours) ** -0.5  # standard deviations


def shuffled(size, seed=0, epoch=0):
    return shuffled_index(np.arange(size), seed, np.full(size, epoch), size)


def test_every_index_occurs_once(subtests):
    for size in SIZES + (FURTHER if is_full() else []):
        with subtests.test(size=size):
            assert (np.bincount(shuffled(size, seed=3, epoch=1), minlength=size) == 1).all()


def test_orders_of_other_seeds_epochs_and_streams_are_independent(subtests):
    for size in (4000, 2**16 + 3):  # listed, and not listed
        order = shuffled(size)
        assert_independent(np.arange(size), order)
        for other in OTHERS if size == 4000 or is_full() else OTHERS[::3]:
            with subtests.test("order", size=size, other=other):
                assert_independent(order, shuffled(size, *other))
    for other in [(0, 0), *OTHERS] if is_full() else OTHERS[::3]:
        with subtests.test("stream", other=other):
            assert_independent(random_order(0, 0, 0, 4000), random_order(*other, 1, 4000))


def test_the_order_is_the_same_with_every_version_of_numpy():
    assert random_order(7, 3, 1, 8).tolist() == [6, 4, 0, 2, 5, 3, 1, 7]
    assert shuffled_index(np.arange(4), 7, np.full(4, 3), 10**6).tolist() == [839581, 456215, 662845, 368279]


def test_more_numbers_than_can_be_listed(subtests):
    for size in (2**32, 2**32 + 1, 2**61 + 5):
        with subtests.test(size=size):
            index = np.unique(np.linspace(0, size - 1, 20_000).astype("int64"))
            found = shuffled_index(index, 11, np.full(len(index), 2**35), size)
            assert found.min() >= 0 and found.max() < size and len(np.unique(found)) == len(index)
            parts = [shuffled_index(index[at : at + 2], 11, [2**35, 4], size) for at in (0, 100)]
            assert [part[0] for part in parts] == found[[0, 100]].tolist()
