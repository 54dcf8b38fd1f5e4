"""Pictures of patterns show what the dense twins say."""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

from tf_sparse_attention.analysis import draw_pattern
from tf_sparse_attention.layers import LocalAttention, MixedAttention, RoutingAttention

matplotlib.use("agg")


def shown(figure):
    return [np.asarray(axis.images[0].get_array()).astype(bool) for axis in figure.axes]


def test_a_window_is_a_band_below_the_diagonal():
    (panel,) = shown(draw_pattern(LocalAttention(1, 4, window=2), length=5))
    np.testing.assert_array_equal(panel, np.eye(5, dtype=bool) | np.eye(5, k=-1, dtype=bool))
    pyplot.close("all")


def test_every_head_of_every_part_has_a_panel():
    parts = [LocalAttention(2, 4, window=3), RoutingAttention(1, 4, num_clusters=2, cluster_size=3)]
    assert len(shown(draw_pattern(MixedAttention(parts), length=9))) == 3
    pyplot.close("all")


@pytest.mark.parametrize("layer", [LocalAttention(1, 4, window=3), MixedAttention([LocalAttention(1, 4, window=3)])])
def test_a_built_layer_keeps_its_size(layer):
    layer(np.zeros((1, 6, 7), "float32"))
    assert shown(draw_pattern(layer, length=6))[0].shape == (6, 6)
    pyplot.close("all")


def test_axes_must_be_as_many_as_heads():
    axes = pyplot.subplots(1, 3)[1]
    with pytest.raises(ValueError, match=r"`axes` must be one for each head\. Received: 3 axes, 2 heads"):
        draw_pattern(LocalAttention(2, 4, window=3), length=5, axes=axes)
    pyplot.close("all")
