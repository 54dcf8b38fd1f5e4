"""Mu-law codec of samples."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import AudioCodec

CODEC = AudioCodec(8000)
EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)
EVERY_ID = np.arange(1, 257)


def test_every_byte_has_a_round_trip():
    np.testing.assert_array_equal(CODEC.encode(CODEC.decode(EVERY_ID)), EVERY_ID)


@pytest.mark.parametrize("sample", [-32768, -20000, -300, -1, 0, 1, 5, 77, 4000, 32767])
def test_a_sample_has_the_byte_of_the_formula(sample):
    companded = math.copysign(math.log(1 + 255 * abs(sample) / 32768) / math.log(256), sample)
    assert CODEC.encode(np.int16(sample)) == 1 + math.floor((companded + 1) / 2 * 255 + 0.5)


def test_decoded_samples_are_within_the_documented_error():
    back = CODEC.decode(CODEC.encode(EVERY_SAMPLE)).astype(int)
    size = np.abs(EVERY_SAMPLE.astype(int))
    assert (np.abs(back - EVERY_SAMPLE) <= np.where(size < 100, 5, 0.05 * size)).all()


def test_louder_samples_have_larger_ids():
    assert set(np.diff(CODEC.encode(EVERY_SAMPLE)).tolist()) == {0, 1}


def test_a_graph_equals_numpy():
    rows = EVERY_SAMPLE.reshape(64, 1024)
    ids = tf.function(CODEC.encode)(tf.constant(rows))
    assert ids.dtype == tf.int32
    np.testing.assert_array_equal(ids, CODEC.encode(rows))
    back = tf.function(CODEC.decode)(ids)
    assert back.dtype == tf.int16
    np.testing.assert_array_equal(back, CODEC.decode(CODEC.encode(rows)))
    np.testing.assert_array_equal(CODEC.decode(tf.constant([0, 999])), CODEC.decode([1, 256]))


def test_invalid_samples_and_ids_are_an_error():
    with pytest.raises(ValueError, match=r"`samples` must be int16\. Received: float64 of shape \(3,\)"):
        CODEC.encode(np.zeros(3))
    for wrong in (0, 257):
        with pytest.raises(ValueError, match=rf"`ids` must be in \[1, 257\)\. Received: id {wrong}"):
            CODEC.decode([5, wrong])
    with pytest.raises(ValueError, match=r"`sample_rate` must be a positive integer\. Received: sample_rate=0"):
        AudioCodec(0)


def test_a_config_round_trip_gives_an_equal_codec():
    assert AudioCodec.from_config(CODEC.get_config()).sample_rate == 8000
