"""Pictures of spans show what the layers have learned."""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

from tf_sparse_attention.analysis import draw_spans
from tf_sparse_attention.layers import AllAttention, LocalAttention, MixedAttention

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def test_each_head_is_a_dot_at_its_span():
    spans = {"ramp": 4, "initial": 0.25}
    parts = [LocalAttention(2, 4, window=64, adaptive_span=spans)]
    parts.append(AllAttention(3, 4, num_persistent=2, window=32, adaptive_span=spans))
    layer = MixedAttention(parts)
    layer.build((None, None, 8))
    parts[0].span.fraction.assign([0.5, 1.0])
    dots = [collection.get_offsets() for collection in draw_spans(layer).axes[0].collections]
    np.testing.assert_array_equal(dots[0][:, 1], [36, 64])
    np.testing.assert_array_equal(dots[1][:, 1], [12, 12, 12])
    assert [round(float(np.mean(part[:, 0]))) for part in dots] == [0, 1]


def test_a_model_without_spans_is_an_error():
    layer = LocalAttention(2, 4, window=64)
    layer.build((None, None, 8))
    with pytest.raises(ValueError, match="`model`"):
        draw_spans(layer)
