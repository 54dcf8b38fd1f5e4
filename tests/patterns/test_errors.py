"""Wrong arguments of patterns and caches raise errors that name the argument."""

import numpy as np
import pytest

from tf_sparse_attention import patterns
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.patterns import (
    First,
    Hashed,
    Heads,
    ImageBlocks,
    Nearest,
    RetrievedClusters,
    SelectedBlocks,
    Union,
    Window,
)
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster


def make_layer(pattern):
    return SparseAttention(2, 4, pattern)


def make_union(parts):
    return make_layer(Union(parts))


def make_sinks(pattern, use_sink):
    return SparseAttention(2, 4, pattern, use_sink=use_sink)


CLUSTERS = {"num_clusters": 4, "cluster_size": 4}
# Class, and wrong arguments, the last of which the message names.
WRONG = [
    (Window, {"size": 0}),
    (First, {"count": 1.0}),
    (patterns.Blocks, {"size": 4, "before": -1}),
    (patterns.Stride, {"stride": 0}),
    (patterns.Dilated, {"window": 4, "dilation": 0}),
    (patterns.Summary, {"block_size": 4, "group": 2, "num_summary": 2}),
    (ImageBlocks, {"width": 0}),
    (ImageBlocks, {"width": 4, "order": "x"}),
    (ImageBlocks, {"width": 4, "block_shape": (2,)}),
    (ImageBlocks, {"width": 4, "height": 0}),
    (Nearest, {"cluster_size": 4, "num_clusters": 0}),
    (Nearest, {**CLUSTERS, "ema_decay": 1}),
    (Nearest, {**CLUSTERS, "revive_after": -1}),
    (BestOfCluster, {**CLUSTERS, "members": "last"}),
    (BestOfCluster, {"cluster_size": 4, "members": "hash", "num_clusters": 6}),
    *((make_union, {"parts": parts}) for parts in ([BestOfCluster(4, 4), Window(2)], [Window(2), BestOfCluster(4, 4)])),
    (Union, {"parts": [RetrievedClusters(), SelectedBlocks()]}),
    *((RetrievedClusters, {**more, "segment": size}) for more, size in (({"cluster_size": 8}, 24), ({}, 8))),
    (RetrievedClusters, {"num_nodes": 7, "segment": 32}),
    (RetrievedClusters, {"num_clusters": 0}),
    *((RetrievedClusters, {"num_nodes": count}) for count in (0, 6)),
    (make_sinks, {"pattern": BestOfCluster(4, 4), "use_sink": True}),
    (Hashed, {"bucket_size": 4, "num_buckets": 3}),
    (Hashed, {"num_buckets": 4, "bucket_size": 4, "round": -1}),
    (SelectedBlocks, {"num_blocks": 0}),
    (SelectedBlocks, {"block_size": 2.0}),
    (patterns.Ring, {"size": 0}),
    *(
        (patterns.Successors, {"pattern": each})
        for each in (First(2), Window(2) | Nearest(3, 2), patterns.Successors(Window(2)), 3)
    ),
    (patterns.Successors, {"pattern": patterns.TopKeys(3, 4)}),
    *((Union, {"parts": parts}) for parts in (Window(2), [Window(2)], [Window(2), 3])),
    (Union, {"parts": [Window(4), Heads([(1, Window(3)), (1, Window(4))])]}),
    (Union, {"parts": [Window(2), First(1)], "count_each": 1}),
    (patterns.InTurn, {"parts": 3}),
    *((Heads, {"groups": groups}) for groups in (3, [(1, 2)], [(0, Window(2))])),
    *((make_layer, {"pattern": each}) for each in ("window", [Window(2)], SparseAttention(1, 4, Window(2)))),
]


def test_a_wrong_argument_is_named(subtests):
    for kind, arguments in WRONG:
        name = list(arguments)[-1]
        with subtests.test(f"{kind.__name__} {arguments}"), pytest.raises(ValueError, match=f"^`{name}`"):
            kind(**arguments)


def test_a_wrong_number_of_heads_is_refused():
    for pattern in (Heads([(2, Window(2)), (1, First(1))]), patterns.InTurn([Window(2)] * 3)):
        with pytest.raises(ValueError, match="`num_heads` must be"):
            pattern.slices(4)


def test_pairs_may_be_lists():
    pattern = ImageBlocks(4, [2, 2], before=[1, 0])
    assert pattern == ImageBlocks(4, (2, 2), before=(1, 0)) and hash(pattern) == hash(ImageBlocks(4, (2, 2), (1, 0)))


class Careless(Window):
    def visible(self, query, key):
        super().visible(query, key)


class Bare(patterns.Pattern):
    pass


def test_an_incomplete_pattern_is_refused():
    with pytest.raises(ValueError, match=r"`visible` of Careless must return a condition, or several\. Received: None"):
        SparseAttention(2, 4, Careless(2))(np.ones((1, 5, 6), "float32"))
    with pytest.raises(ValueError, match=r"must be a frozen dataclass.*Received: Bare\."):
        SparseAttention(2, 4, Bare())


def test_more_pixels_than_an_image_has_are_refused():
    layer = SparseAttention(2, 4, Window(2) | ImageBlocks(4, (2, 2), order="blocks", height=3))
    pixels = np.ones((1, 13, 6), "float32")
    assert layer(pixels[:, :12]).shape == (1, 12, 6)
    for attend in (layer, layer.attention_pattern):
        with pytest.raises(ValueError, match="`query` must have at most 12 positions"):
            attend(pixels)
    with pytest.raises(ValueError, match="`max_length` must have at most 12 positions"):
        layer.init_cache(1, 13)
