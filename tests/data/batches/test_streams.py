"""The same batches where TensorFlow is not installed."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import SegmentBatches, TrainingBatches, evaluation_batches, evaluation_segments
from tf_sparse_attention.data.batches import streams


def of_batches(dataset, count):
    return [[np.asarray(leaf) for leaf in tf.nest.flatten(element)] for element in dataset.take(count)]


@pytest.mark.parametrize(
    "make",
    [
        lambda store: TrainingBatches(store, 4, 16, seed=3).dataset(start_step=5),
        lambda store: TrainingBatches(store, 4, 16, mask_rate=0.2).dataset(num_steps=3, num_shards=2, shard_index=1),
        lambda store: SegmentBatches(store, 2, 16).dataset(num_steps=3, num_parts=2),
        lambda store: evaluation_batches(store, 2, 64, overlap=16, first_batch=1),
        lambda store: evaluation_segments(store, 2, 64, use_packing=False),
    ],
    ids=["training", "hidden", "segments", "evaluation", "evaluation_segments"],
)
def test_without_tensorflow_batches_are_the_same(make, random_store, monkeypatch):
    through_tensorflow = of_batches(make(random_store()), 4)
    monkeypatch.setattr(streams, "has_tensorflow", lambda: False)
    stream = make(random_store())
    assert isinstance(stream, streams.BatchStream)
    for ours, theirs in zip(of_batches(stream, 4), through_tensorflow, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


def test_a_stream_has_a_number_of_batches_or_none():
    endless, finite = streams.BatchStream(np.square, 3), streams.BatchStream(np.square, 3, 6)
    assert (endless.num_batches, endless[2], endless.take(2).num_batches) == (None, 25, 2)
    assert (finite.num_batches, list(finite), list(finite.take(9)), finite[0]) == (3, [9, 16, 25], [9, 16, 25], 9)
    with pytest.raises(IndexError, match=r"`index` must be in \[0, 3\). Received: index=3."):
        finite[3]


def test_a_program_waits_until_no_batch_is_computed():
    running = streams._Running()
    with running:
        running.LIMIT = 0.02
        running.wait()  # not for ever
    running.LIMIT, before = 5.0, running._last
    running.wait()
    assert streams.time.monotonic() - before >= running.REST
