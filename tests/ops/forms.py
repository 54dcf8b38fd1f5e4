"""Attention under one pattern as a function with that pattern's own arguments, for tests that name one."""

from typing import NamedTuple

from keras import ops

from tf_sparse_attention.ops.chunks import ChunkedRounds
from tf_sparse_attention.ops.random_groups import random_groups
from tf_sparse_attention.patterns.attending import attend_pattern
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.hashed import Hashed, HashedChunk
from tf_sparse_attention.patterns.image import ImageBlocks
from tf_sparse_attention.patterns.nearest import BestOfCluster
from tf_sparse_attention.patterns.pattern import Union
from tf_sparse_attention.patterns.stride import Stride
from tf_sparse_attention.patterns.summary import Summary
from tf_sparse_attention.patterns.window import Window

PARTS = ("local", "far", "merged")


def local_attention(
    query,
    key,
    value,
    block_size=256,
    num_blocks_before=1,
    num_blocks_after=1,
    window=None,
    see_self=True,
    key_block_size=None,
    slots=None,
    **options,
):
    """Attention to blocks, or to an exact window, and to persistent vectors."""
    options["persistent"] = slots
    blocks = Blocks(block_size, num_blocks_before, num_blocks_after, key_block_size)
    options["hide_self"] = None if see_self else "always"
    return attend_pattern(blocks if window is None else Window(window), query, key, value, **options)


def of_part(part, near, far):
    """One of two patterns or their union."""
    return {"local": near, "far": far, "merged": near | far}[part]


def strided_attention(query, key, value, stride, part, **options):
    """Strided attention or a part of it."""
    return attend_pattern(of_part(part, Window(stride), Stride(stride)), query, key, value, **options)


class Columns(NamedTuple):
    """The summary columns of `fixed_attention`: the `group`-th run of `count` from the end of each block."""

    block_size: int
    count: int
    group: int = 0


def fixed_attention(query, key, value, columns, part, **options):
    """Fixed attention or a part of it."""
    near = Blocks(columns.block_size, 0, 0)
    return attend_pattern(of_part(part, near, Summary(*columns)), query, key, value, **options)


def local_attention_2d(query, key, value, image, num_blocks_before=(1, 1), num_blocks_after=(1, 1), **options):
    """Local attention on an `Image`."""
    pattern = ImageBlocks(
        image.width, image.block_shape, num_blocks_before, num_blocks_after, image.order, image.height
    )
    return attend_pattern(pattern, query, key, value, **options)


def group_attention(query, key, value, query_groups, key_groups, band, mask_self=False, **options):
    """Attention inside groups of `groups_of`; keys None and one list of groups where queries are the keys."""
    known = [({"group": query_groups}, {"group": key_groups})]
    options["hide_self"] = "unless_alone" if mask_self else None
    return attend_pattern(Hashed(2, band), query, key, value, known=known, **options)


def nearest_attention(query, value, groups, band, causal=True, mask_self=True, key=None, **options):
    """Attention inside groups where queries are the keys, or their tokens the same."""
    return group_attention(query, key, value, groups, groups, band, causal=causal, mask_self=mask_self, **options)


def separate_attention(query, key, value, query_groups, key_groups, band, causal=True, **options):
    """Attention inside groups with keys of their own."""
    return group_attention(query, key, value, query_groups, key_groups, band, causal=causal, **options)


def top_k_attention(query, key, value, queries, keys, causal=None, mask_self=False, extra_count=0.0, **options):
    """Attention inside clusters of `Members`; `causal` is "position", "rank" or None. Returns output and weights."""
    pattern = BestOfCluster(1, 1, causal == "rank", extra_count)
    options["hide_self"] = "unless_alone" if mask_self else None
    options["causal"] = causal is not None
    return attend_pattern(pattern, query, key, value, known=[(queries, keys)], **options)[:2]


def chunk_attention(query, key, value, query_groups, key_groups, chunk_size, mask_self=True, **options):
    """Attention in chunks of the tokens of all rounds."""
    rounds = ChunkedRounds(query_groups, key_groups, chunk_size)
    leaves = tuple(HashedChunk(2, chunk_size, number) for number in range(len(query_groups)))
    pattern = leaves[0] if len(leaves) == 1 else Union(leaves, count_each=True)
    options["hide_self"] = "unless_alone" if mask_self else None
    return attend_pattern(pattern, query, key, value, known=[rounds] * len(leaves), **options)


def random_clusters(num_heads, length, num_clusters, seed):
    """Clusters that depend on head, position and seed alone, int32 (1, N, T)."""
    return random_groups(ops.arange(length, dtype="int32")[None], num_heads, num_clusters, seed)
