"""Every wrong argument of a pattern or a cache is named, with what was expected and what came."""

import numpy as np
import pytest

from tf_sparse_attention import patterns
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.patterns import (
    First,
    Hashed,
    Heads,
    ImageBlocks,
    InTurn,
    Nearest,
    Pattern,
    Successors,
    Union,
    Window,
)

NO_SUCCESSORS = (
    "`pattern` must be a pattern whose arrangement accepts a `lead` of -1, such as Window or Nearest. "
    "Received: pattern="
)
WRONG = [
    (Window, {"size": 0}, "`size` must be a positive integer. Received: size=0."),
    (First, {"count": 1.0}, "`count` must be a positive integer. Received: count=1.0."),
    (patterns.Blocks, {"size": 4, "before": -1}, "`before` must be an integer of at least 0. Received: before=-1."),
    (patterns.Stride, {"stride": 0}, "`stride` must be a positive integer. Received: stride=0."),
    (patterns.Dilated, {"window": 4, "dilation": 0}, "`dilation` must be a positive integer. Received: dilation=0."),
    (
        patterns.Summary,
        {"block_size": 4, "num_summary": 2, "group": 2},
        "`num_summary` times `group` + 1 must be at most `block_size`. Received: num_summary=2, group=2, block_size=4.",
    ),
    (ImageBlocks, {"width": 0}, "`width` must be a positive integer. Received: width=0."),
    (ImageBlocks, {"width": 4, "order": "x"}, "`order` must be one of ['raster', 'blocks']. Received: order='x'."),
    (ImageBlocks, {"width": 4, "block_shape": (2,)}, "`block_shape` must be"),
    (ImageBlocks, {"width": 4, "before": 1}, "`before` must be"),
    (ImageBlocks, {"width": 4, "height": 0}, "`height` must be a positive integer. Received: height=0."),
    (Nearest, {"num_clusters": 0, "cluster_size": 4}, "`num_clusters` must be a positive integer. Received: "),
    (Nearest, {"num_clusters": 4, "cluster_size": 4, "ema_decay": 1}, "`ema_decay` must be a number in [0, 1). "),
    (
        Nearest,
        {"num_clusters": 4, "cluster_size": 4, "commitment_loss": -1},
        "`commitment_loss` must be a number of at ",
    ),
    (Nearest, {"num_clusters": 4, "cluster_size": 4, "revive_after": -1}, "`revive_after` must be an integer of at "),
    (Hashed, {"num_buckets": 3, "bucket_size": 4}, "`num_buckets` must be even. Received: num_buckets=3."),
    (Hashed, {"num_buckets": 4, "bucket_size": 4, "round": -1}, "`round` must be an integer of at least 0. Received: "),
    (patterns.Ring, {"size": 0}, "`size` must be a positive integer. Received: size=0."),
    (patterns.PhaseRings, {"stride": 0}, "`stride` must be a positive integer. Received: stride=0."),
    (Successors, {"pattern": First(2)}, NO_SUCCESSORS + "First("),
    (Successors, {"pattern": Window(2) | Nearest(3, 2)}, NO_SUCCESSORS + "Union("),
    (Successors, {"pattern": Successors(Window(2))}, NO_SUCCESSORS + "Successors("),
    (Successors, {"pattern": 3}, NO_SUCCESSORS + "3."),
    (Union, {"parts": Window(2)}, "`parts` must be at least two patterns. Received: parts=Window(size=2)."),
    (Union, {"parts": [Window(2)]}, "`parts` must be at least two patterns. Received: parts=(Window(size=2),)."),
    (Union, {"parts": [Window(2), 3]}, "`parts` must be patterns. Received: 3."),
    (Union, {"parts": [Window(2), First(1)], "count_each": 1}, "`count_each` must be True or False. Received: "),
    (InTurn, {"parts": 3}, "`parts` must be at least two patterns. Received: parts=3."),
    (
        Heads,
        {"groups": 3},
        "`groups` must be pairs of a positive number of heads and a pattern. Received: groups=3.",
    ),
    (
        Heads,
        {"groups": [(1, 2)]},
        "`groups` must be pairs of a positive number of heads and a pattern. Received: groups=[(1, 2)].",
    ),
    (
        Heads,
        {"groups": [(0, Window(2))]},
        "`groups` must be pairs of a positive number of heads and a pattern. Received: groups=[(0, Window(size=2))].",
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), WRONG)
def test_a_wrong_argument_is_named_with_what_was_expected_and_received(kind, arguments, message):
    with pytest.raises(ValueError) as error:
        kind(**arguments)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            Heads([(2, Window(2)), (1, First(1))]),
            "`num_heads` must be 3, the sum over `groups`. Received: num_heads=4.",
        ),
        (InTurn([Window(2)] * 3), "`num_heads` must be a multiple of 3, the number of `parts`. Received: num_heads=4."),
    ],
)
def test_another_number_of_heads_is_refused(pattern, message):
    with pytest.raises(ValueError) as error:
        pattern.slices(4)
    assert str(error.value) == message


def test_a_pair_may_be_a_list():
    assert ImageBlocks(4, [2, 2], before=[1, 0]) == ImageBlocks(4, (2, 2), before=(1, 0))


def test_pairs_may_be_lists():
    pattern = ImageBlocks(4, [2, 2], before=[1, 0])
    assert pattern == ImageBlocks(4, (2, 2), before=(1, 0)) and hash(pattern) == hash(ImageBlocks(4, (2, 2), (1, 0)))


@pytest.mark.parametrize("pattern", ["window", [Window(2)], SparseAttention(1, 4, Window(2))], ids=str)
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match=r"`pattern` must be a tsa.patterns.Pattern, such as .*Received: pattern="):
        SparseAttention(2, 4, pattern)


class Careless(Window):
    def visible(self, query, key):
        super().visible(query, key)


class Bare(Pattern):
    pass


def test_a_pattern_that_forgets_something_is_told_what():
    with pytest.raises(ValueError, match=r"`visible` of Careless must return a condition, or several\. Received: None"):
        SparseAttention(2, 4, Careless(2))(np.ones((1, 5, 6), "float32"))
    with pytest.raises(ValueError, match=r"must be a frozen dataclass.*Received: Bare\."):
        SparseAttention(2, 4, Bare())


@pytest.mark.parametrize("causal", [True, False])
def test_more_pixels_than_an_image_has_are_refused(causal):
    layer = SparseAttention(2, 4, Window(2) | ImageBlocks(4, (2, 2), order="blocks", height=3))
    pixels = np.ones((1, 13, 6), "float32")
    assert layer(pixels[:, :12], use_causal_mask=causal).shape == (1, 12, 6)
    message = "`query` must have at most 12 positions, .* Received: 13 positions, ImageBlocks"
    for attend in (layer, layer.attention_pattern):
        with pytest.raises(ValueError, match=message):
            attend(pixels, use_causal_mask=causal)
    with pytest.raises(ValueError, match="`max_length` must have at most 12 positions"):
        layer.init_cache(1, 13)
