"""Patterns: frozen dataclasses that define which keys each query attends to.

`Window(256) | First(4)` is the union of two patterns in one softmax. `Heads([(6, Window(256)), (2, Stride(64))])` gives
heads different patterns. `tsa.layers.SparseAttention` accepts every pattern.
"""

from tf_sparse_attention.patterns.arrangement import Arrangement, Grid
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.cache_policies import Buckets, CachePolicy, Everything, Ring
from tf_sparse_attention.patterns.first import First
from tf_sparse_attention.patterns.group_band import GroupBand, GroupSelector
from tf_sparse_attention.patterns.hashed import Hashed
from tf_sparse_attention.patterns.image import ImageBlocks
from tf_sparse_attention.patterns.nearest import Nearest
from tf_sparse_attention.patterns.pattern import Call, Heads, InTurn, Pattern, Union
from tf_sparse_attention.patterns.retrieved_clusters import RetrievedClusters
from tf_sparse_attention.patterns.selected_blocks import SelectedBlocks
from tf_sparse_attention.patterns.selection import NewTokens, Selection, Selector, TokenFeatures, TokenInfo
from tf_sparse_attention.patterns.stride import Dilated, PhaseRings, Stride
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.patterns.summary import Summary
from tf_sparse_attention.patterns.top_keys import TopKeys
from tf_sparse_attention.patterns.window import Window

__all__ = [
    "Arrangement",
    "Blocks",
    "Buckets",
    "CachePolicy",
    "Call",
    "Dilated",
    "Everything",
    "First",
    "Grid",
    "GroupBand",
    "GroupSelector",
    "Hashed",
    "Heads",
    "ImageBlocks",
    "InTurn",
    "Nearest",
    "NewTokens",
    "Pattern",
    "PhaseRings",
    "RetrievedClusters",
    "Ring",
    "SelectedBlocks",
    "Selection",
    "Selector",
    "Stride",
    "Successors",
    "Summary",
    "TokenFeatures",
    "TokenInfo",
    "TopKeys",
    "Union",
    "Window",
]
__dir__ = __all__.copy  # without the submodules
