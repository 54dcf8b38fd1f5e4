"""Mu-law codec of samples."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import AudioCodec

CODEC = AudioCodec(8000)
EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)


def test_ids_are_those_of_the_formula_and_have_a_round_trip():
    ids = CODEC.encode(EVERY_SAMPLE)
    companded = [math.copysign(math.log(1 + 255 * abs(x) / 32768) / math.log(256), x) for x in EVERY_SAMPLE.tolist()]
    np.testing.assert_array_equal(ids, [1 + math.floor((value + 1) / 2 * 255 + 0.5) for value in companded])
    back = CODEC.decode(ids).astype(int)
    size = np.abs(EVERY_SAMPLE.astype(int))
    assert (np.abs(back - EVERY_SAMPLE) <= np.where(size < 100, 5, 0.05 * size)).all()  # the documented error
    np.testing.assert_array_equal(CODEC.encode(CODEC.decode(np.arange(1, 257))), np.arange(1, 257))
    assert AudioCodec.from_config(CODEC.get_config()).sample_rate == 8000


def test_a_graph_equals_numpy():
    rows = EVERY_SAMPLE.reshape(64, 1024)
    ids = tf.function(CODEC.encode)(tf.constant(rows))
    assert ids.dtype == tf.int32
    np.testing.assert_array_equal(ids, CODEC.encode(rows))
    back = tf.function(CODEC.decode)(ids)
    assert back.dtype == tf.int16
    np.testing.assert_array_equal(back, CODEC.decode(CODEC.encode(rows)))
    np.testing.assert_array_equal(CODEC.decode(tf.constant([0, 999])), CODEC.decode([1, 256]))


def test_invalid_arguments_are_errors():
    with pytest.raises(ValueError, match="`samples`"):
        CODEC.encode(np.zeros(3))
    for wrong in (0, 257):
        with pytest.raises(ValueError, match="`ids`"):
            CODEC.decode([5, wrong])
    with pytest.raises(ValueError, match="`sample_rate`"):
        AudioCodec(0)
