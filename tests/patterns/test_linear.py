"""Compositions cost what their parts cost: no array is quadratic in the sequence, forward or backward."""

import numpy as np
import pytest

from tests.ops import arrays
from tests.ops.linear_memory import trace
from tests.patterns.test_compositions import KEY_DIM, SIZE, make_layer
from tf_sparse_attention.patterns import Blocks, Dilated, First, Heads, Nearest, Stride, Summary, Window

LENGTH = 1024
COMPOSITIONS = {
    "sinks": (Window(64) | First(4), 2),
    "routed": (Window(32) | Nearest(16, 64), 2),
    "factorized": (Heads([(1, Blocks(32, 1) | Summary(32, 2)), (1, Window(32) | Stride(64)), (1, Dilated(16, 8))]), 3),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", list(COMPOSITIONS))
def test_no_array_is_quadratic_in_the_sequence(name, packed):
    pytest.importorskip("tensorflow")
    pattern, num_heads = COMPOSITIONS[name]
    layer = make_layer(pattern, num_heads)
    x = np.random.default_rng(0).standard_normal((1, LENGTH, SIZE)).astype("float32")
    masks = {"segment_ids": np.arange(LENGTH)[None] // 300} if packed else {}

    def attend(x):
        return (layer(x["x"], use_causal_mask=True, **masks),)

    shapes = trace(attend, {"x": x}, np.ones_like(x))
    # Keys of their own are arranged with their queries: twice the slots, and as many blocks back as the band needs.
    most = 6 * 128 * LENGTH * num_heads
    assert KEY_DIM * LENGTH * num_heads < most < LENGTH * LENGTH * num_heads
    assert arrays.quadratic(shapes, LENGTH, LENGTH, most) == []
