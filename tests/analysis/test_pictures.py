"""Pictures of patterns show what the dense twins say."""

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
from tf_sparse_attention.analysis import draw_pattern, draw_weights
from tf_sparse_attention.analysis.pictures import groups_of
from tf_sparse_attention.layers import ClusteredAttention, LocalAttention, MixedAttention, RoutingAttention
from tf_sparse_attention.patterns import First, Heads, InTurn, Window

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def shown(figure):
    return [np.asarray(axis.images[0].get_array()).astype(bool) for axis in figure.axes]


def test_every_head_of_every_part_has_a_panel():
    parts = [LocalAttention(2, 4, window=3), RoutingAttention(1, 4, num_clusters=2, cluster_size=3)]
    assert len(shown(draw_pattern(MixedAttention(parts), length=9))) == 3


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


def test_tokens_that_reach_one_another_are_a_group():
    seen = np.zeros((5, 5), bool)
    seen[3, 1] = seen[4, 3] = seen[2, 0] = True  # 4 reaches 1 through 3
    assert groups_of(seen).tolist() == [0, 1, 0, 1, 1]
    assert groups_of(np.zeros((3, 3), bool)).tolist() == [0, 1, 2]  # tokens that see nothing


def test_each_cluster_has_a_colour_of_its_own():
    layer = RoutingAttention(1, 4, num_clusters=2, cluster_size=9, selection="random", mask_self=False, seed=3)
    panel = np.asarray(draw_pattern(layer, length=9).axes[0].images[0].get_array())
    assert len(np.unique(panel[panel > 0])) == 2
    plain = np.asarray(draw_pattern(layer, length=9, show_groups=False).axes[0].images[0].get_array())
    np.testing.assert_array_equal(plain, (panel > 0).astype(int))


def test_an_overlay_is_one_panel():
    (panel,) = shown(draw_pattern(LocalAttention(3, 4, window=2), length=4, overlay=True))
    np.testing.assert_array_equal(panel, np.eye(4, dtype=bool) | np.eye(4, k=-1, dtype=bool))


def test_the_future_is_shaded_under_a_causal_mask_only():
    layer = LocalAttention(1, 4, window=2)
    assert len(draw_pattern(layer, 4).axes[0].patches) == 1
    assert len(draw_pattern(layer, 4, use_causal_mask=False).axes[0].patches) == 0


def test_weights_are_those_of_the_layer():
    layer = ClusteredAttention(2, 4, num_clusters=3)
    inputs = np.random.default_rng(0).normal(size=(1, 9, 6)).astype("float32")
    figure = draw_weights(layer, 9, use_causal_mask=False, inputs=inputs)
    _, weights = layer(inputs, return_attention_scores=True)
    for axis, head in zip(figure.axes, np.asarray(weights)[0], strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), head)
    assert len({tuple(row) for row in np.asarray(weights)[0, 0]}) <= 3  # queries of a cluster have one row


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
