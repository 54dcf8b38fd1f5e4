"""Adaptive spans: the factor of each distance, its gradient, and the smallest window."""

import keras
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import differentiate
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.span import Span, closed_clip, needed_window


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


def span(*fractions, **options):
    return Span(keras.ops.convert_to_tensor(np.float32(fractions)), **options)


def test_a_span_worked_by_hand():
    # z L = 2, R = 4: full up to distance 2, then 3/4, 2/4, 1/4, 0.
    offsets = -np.arange(8)[None, :]
    share = to_numpy(span(0.25, window=8, ramp=4).factor(Distances(offsets=offsets)))
    np.testing.assert_allclose(share, [[[[1, 1, 1, 0.75, 0.5, 0.25, 0, 0]]]])


def test_each_head_has_its_own_span_on_both_sides():
    seen = to_numpy(span(0, 0.5, window=4, ramp=1).dense_mask(4, 6))
    apart = abs(np.arange(4)[:, None] - np.arange(6)[None, :])
    np.testing.assert_array_equal(seen, [apart < 1, apart < 3])


def test_the_gradient_passes_at_both_corners():
    # At z = 0 the nearest key and the first beyond the ramp lie exactly on the corners.
    inputs = {"x": np.float32([-0.5, 0, 0.5, 1, 1.5])}
    (clipped,), gradients = differentiate(lambda x: [closed_clip(x["x"])], inputs, np.ones(5, "float32"))
    np.testing.assert_array_equal(to_numpy(clipped), [0, 0, 0.5, 1, 1])
    np.testing.assert_array_equal(to_numpy(gradients["x"]), [0, 1, 1, 1, 0])


@given(
    fraction=st.floats(0, 1, width=32),
    window=st.integers(1, 40),
    ramp=st.integers(1, 20),
    sizes=st.integers(1, 20),
    first=st.integers(0, 1),
)
def test_the_needed_window_holds_every_key_that_counts(fraction, window, ramp, sizes, first):
    needed = needed_window(fraction, window, ramp, num_sizes=sizes)
    distances = np.arange(first, window + first)
    share = to_numpy(span(fraction, window=window, ramp=ramp, first=first).factor(Distances(offsets=-distances[None])))
    assert 1 <= needed <= window
    assert not share[..., needed:].any()
    assert needed == window or needed % -(-window // sizes) == 0
