"""Pictures of patterns equal the dense reference masks, and those of spans the learned spans."""

import re

import keras
import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

from docs import draw_patterns
from tests.cases import every_layer
from tests.contracts import SIZE, built, normal
from tests.oracle.layers import dense_call
from tf_sparse_attention import layers
from tf_sparse_attention.analysis import draw_pattern, draw_spans, draw_weights
from tf_sparse_attention.layers import (
    AllAttention,
    ClusteredAttention,
    LocalAttention,
    MixedAttention,
    RoutingAttention,
)
from tf_sparse_attention.patterns import First, Heads, InTurn, Window

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def shown(figure):
    return [np.asarray(axis.images[0].get_array()).astype(bool) for axis in figure.axes]


def test_a_pattern_is_drawn_in_as_many_heads_as_it_tells_apart():
    for pattern, panels in [(Window(2) | First(1), 1), (Heads([(2, Window(2)), (1, First(1))]), 3)]:
        assert len(shown(draw_pattern(pattern, length=5))) == panels
    first, second = shown(draw_pattern(InTurn([Window(1), Window(3)]), length=5, use_causal_mask=False))
    np.testing.assert_array_equal(first, np.eye(5, dtype=bool))
    assert second.sum() == 19


def test_invalid_arguments_are_errors():
    axes = pyplot.subplots(1, 3)[1]
    for name, target, length, options in [
        ("length", Window(4), 0, {}),
        ("layer", keras.layers.Dense(3), 5, {}),
        ("axes", LocalAttention(2, 4, window=3), 5, {"axes": axes}),  # two heads
    ]:
        with pytest.raises(ValueError, match=f"`{name}`"):
            draw_pattern(target, length, **options)


@every_layer(by_default=("sparse_heads", "top_k_separate", "mixed"))
def test_every_layer_is_drawn_as_numpy_computes_it(case):
    layer, x = built(case), normal(1, 9, SIZE)
    drawn = shown(draw_pattern(layer, 9, use_causal_mask=case.causal, inputs=x))
    np.testing.assert_array_equal(drawn, dense_call(layer, x, causal=case.causal).pattern[0])


def test_each_cluster_has_a_colour_of_its_own():
    layer = RoutingAttention(1, 4, num_clusters=2, cluster_size=9, selection="random", mask_self=False, seed=3)
    panel = np.asarray(draw_pattern(layer, length=9).axes[0].images[0].get_array())
    assert len(np.unique(panel[panel > 0])) == 2
    plain = np.asarray(draw_pattern(layer, length=9, show_groups=False).axes[0].images[0].get_array())
    np.testing.assert_array_equal(plain, (panel > 0).astype(int))


def test_an_overlay_is_one_panel():
    (panel,) = shown(draw_pattern(LocalAttention(3, 4, window=2), length=4, overlay=True))
    np.testing.assert_array_equal(panel, np.eye(4, dtype=bool) | np.eye(4, k=-1, dtype=bool))


def test_weights_are_those_of_the_layer():
    layer = ClusteredAttention(2, 4, num_clusters=3)
    inputs = np.random.default_rng(0).normal(size=(1, 9, 6)).astype("float32")
    figure = draw_weights(layer, 9, use_causal_mask=False, inputs=inputs)
    _, weights = layer(inputs, return_attention_scores=True)
    for axis, head in zip(figure.axes, np.asarray(weights)[0], strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), head)
    assert len({tuple(row) for row in np.asarray(weights)[0, 0]}) <= 3  # queries of a cluster have one row


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


@pytest.mark.pages
def test_all_pictures_are_drawn_by_their_command(tmp_path):
    draw_patterns.main(tmp_path)
    assert 10_000 < (tmp_path / "patterns.png").stat().st_size < 150_000
    drawn = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert drawn == {path.name for path in (draw_patterns.FOLDER / "pictures").iterdir()}
    page = (draw_patterns.FOLDER / "patterns.md").read_text(encoding="utf-8")
    assert drawn == {name.removeprefix("(pictures/") for name in re.findall(r"\(pictures/[a-z_]+\.png", page)}


def test_the_page_of_patterns_has_every_attention_layer():
    page = (draw_patterns.FOLDER / "patterns.md").read_text(encoding="utf-8")
    names = [name for name in layers.__all__ if name.endswith(("Attention", "Attention2D"))]
    names.remove("SwappedAttention")  # no pattern, but a place for one
    assert len(names) > 5 and all(f"`{name}" in page for name in names)
