"""The rows of a batch are divided among shards in order."""

import pytest

from tf_sparse_attention.data.batches.sharding import shard_rows


def test_rows_are_divided_in_order():
    assert [shard_rows(12, 3, index, 2) for index in range(3)] == [(0, 2), (4, 2), (8, 2)]


def test_one_shard_has_all_rows():
    assert shard_rows(5) == (0, 5)


@pytest.mark.parametrize("name", ["batch_size", "num_shards", "num_parts"])
def test_counts_must_be_positive(name):
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive integer. Received: {name}=0."):
        shard_rows(**{"batch_size": 4, name: 0})


@pytest.mark.parametrize("index", [-1, 2])
def test_a_shard_that_does_not_exist_is_an_error(index):
    with pytest.raises(ValueError, match=rf"Received: shard_index={index}, num_shards=2."):
        shard_rows(4, 2, index)


def test_a_batch_that_cannot_be_divided_is_an_error():
    with pytest.raises(ValueError, match=r"Received: batch_size=6, num_shards=2, num_parts=2."):
        shard_rows(6, 2, 0, 2)
