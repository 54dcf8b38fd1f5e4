"""Sliding-window attention over a sharded sequence."""

import functools
from typing import NamedTuple

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.jax_worker import run_on_devices

HEADS, SIZE = 2, 4


class Case(NamedTuple):
    """A window, what it is of, and the devices: 4 for the sequence, or 2 for it and 2 for the batch."""

    length: int
    window: int
    causal: bool
    has_padding: bool = False
    mesh: str = "4"


CASES = (
    Case(32, 1, True),  # nothing is exchanged
    Case(32, 5, False, True),
    Case(32, 9, True, True),  # the part of a device and one more
    Case(32, 20, True, True),  # three devices before
    Case(32, 99, True),  # everything
    Case(32, 99, False, True),
    Case(4, 3, True),  # one position a device
    Case(160, 34, False),
    Case(32, 7, True, True, "2x2"),
)


@functools.cache
def compared():
    """Return for each case the differences from one device and the shape of a part, see the worker."""
    return run_on_devices("tests.distribution.sharded_window_worker")


@pytest.mark.full
@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(tuple(case)) for case in CASES])
def test_four_devices_of_jax_compute_outputs_and_gradients_of_one(index):
    pytest.importorskip("jax")
    case, (output, gradients, part) = CASES[index], compared()[index]
    assert output < 2e-6 and gradients < 5e-6  # float32 sums of up to 99 keys in another order
    assert part == ([2, case.length // 4, HEADS, SIZE] if case.mesh == "4" else [1, case.length // 2, HEADS, SIZE])


# A window by hand, of equal keys: the mean of two neighbours' values, of which the fourth begins the second part.
ON_TWO_DEVICES = """
import keras, numpy as np, pytest
import tf_sparse_attention as tsa
mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "sequence"), keras.distribution.list_devices()[:2])
x = np.ones((1, 6, 1, 1), "float32")
value = np.array([1, 2, 4, 8, 16, 32], "float32").reshape(x.shape)
output = tsa.distribution.sharded_window_attention(x, x, value, 2, mesh, causal=True)
np.testing.assert_allclose(np.ravel(output), [1, 1.5, 3, 6, 12, 24], atol=1e-6)
assert [shard.data.shape for shard in output.addressable_shards] == [(1, 3, 1, 1)] * 2
attend = lambda *arguments, x=x: tsa.distribution.sharded_window_attention(x, x, x, *arguments)
with pytest.raises(ValueError, match=r"`window` must be .*Received: window=0"):
    attend(0, mesh)
with pytest.raises(ValueError, match=r"`sequence_axis` must be an axis.*sequence_axis='time'.*batch, sequence."):
    attend(2, mesh, "time")
with pytest.raises(ValueError, match=r"`batch_axis` must be an axis.*batch_axis='rows'.*batch, sequence."):
    attend(2, mesh, "sequence", "rows")
with pytest.raises(ValueError, match=r"`query` must have .* divide.*Received: 5 positions.* 2 devices."):
    attend(2, mesh, x=x[:, :5])
"""


@pytest.mark.full
def test_two_devices_of_jax_exchange_a_key_and_refuse_invalid_arguments(run_jax):
    run_jax(ON_TWO_DEVICES)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="an error of the other backends")
def test_another_backend_is_an_error():
    mesh = keras.distribution.DeviceMesh((2,), ("sequence",), ["cpu:0", "cpu:1"])
    x = np.ones((1, 4, 1, 1), "float32")
    with pytest.raises(ValueError, match=r"must be 'jax' for `sharded_window_attention`.*Received: tensorflow\."):
        tsa.distribution.sharded_window_attention(x, x, x, 2, mesh)
