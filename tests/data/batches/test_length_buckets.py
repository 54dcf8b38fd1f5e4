"""Length buckets: no row is mostly padding, and epochs are independent; tests of pairs and speech read whole epochs."""

import numpy as np
import pytest

from tests.data.batches.test_random_order import aligned
from tf_sparse_attention.data import LengthBuckets

SIZES = np.random.default_rng(0).integers(100, 1600, 60)


def test_a_row_is_at_least_half_full_and_all_batches_have_as_many_positions():
    buckets = LengthBuckets(SIZES, batch_size=2, max_length=1600, shortest=200)
    assert buckets.lengths == [1600, 800, 400, 200]
    for _, items, _, length in buckets.plans():
        assert length * len(items) == 2 * 1600
        assert length == 200 or (SIZES[items[items >= 0]] > length // 2).all()


def test_orders_of_neighbouring_seeds_are_independent():
    class Numbers(LengthBuckets):
        def read(self, rows):
            return rows.items

    batches = [Numbers(np.full(4000, 10), batch_size=1, max_length=10).training_batches(seed) for seed in (0, 1)]
    orders = [[int(each[step][0]) for step in range(4000)] for each in batches]
    assert aligned(*np.array(orders)) < 12


def test_log_lines_and_errors_have_the_names_of_items_and_positions(caplog):
    with caplog.at_level("INFO"):
        LengthBuckets([5, 300, 70], 1, 256, names=("utterance", "frame"))
    assert "1 of 3 utterances" in caplog.text and "more than 256 frames" in caplog.text
    assert "2 x 128, 4 x 64" in caplog.text
    with pytest.raises(ValueError, match=r"`max_length` .* frames in the shortest utterance, 5\."):
        LengthBuckets([5], 1, 4, names=("utterance", "frame"))
