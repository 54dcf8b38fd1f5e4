"""Compositions of patterns, fixed and drawn, and which keys they show a query: in NumPy, from definitions alone."""

import numpy as np
from hypothesis import strategies as st

from tests.ops import twins
from tf_sparse_attention.patterns import (
    Blocks,
    Dilated,
    First,
    Hashed,
    Heads,
    ImageBlocks,
    Nearest,
    Stride,
    Summary,
    Union,
    Window,
)

FIXED = {
    "sinks": (Window(7) | First(3), 2),
    "routed": (Window(5) | Nearest(3, 4), 2),
    "heads": (Heads([(1, Dilated(3, 4) | First(1)), (2, Blocks(6, 1) | Stride(5) | Hashed(4, 3))]), 3),
}
BY_CONTENT = {
    "nearest_hashed": (Nearest(3, 4) | Hashed(4, 3), 2),
    "nearest_twice": (Nearest(3, 2) | Nearest(2, 4), 1),
}
ON_JAX = {**FIXED, "image": (ImageBlocks(6, (2, 3)) | Summary(8, 2), 2)}


@st.composite
def leaves(draw):
    """Patterns that are no compositions."""
    size, small = draw(st.integers(1, 20)), draw(st.integers(1, 5))
    kinds = [
        Window(size),
        Blocks(size, draw(st.integers(0, 2)), draw(st.sampled_from([None, 0, 1]))),
        Stride(size),
        Summary(size + small - 1, small),
        First(small),
        Dilated(small, draw(st.integers(1, 6))),
        ImageBlocks(draw(st.integers(2, 9)), (2, 3), (1, 1), (1, 0)),
        Nearest(small, size),
        Hashed(2 * draw(st.integers(1, 3)), size),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def compositions(draw):
    """Pairs of a pattern and its number of heads."""

    def one():
        parts = draw(st.lists(leaves(), min_size=1, max_size=3))
        return parts[0] if len(parts) == 1 else Union(tuple(parts))

    if draw(st.booleans()):
        return one(), draw(st.integers(1, 2))
    counts = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    return Heads(tuple((count, one()) for count in counts)), sum(counts)


def visible(pattern, length, causal, groups, segments):
    """Returns which keys the heads of a pattern see, (N, T, T), before padding and documents are left out.

    Args:
        pattern: a pattern of `compositions`; one without `Heads` gives one head.
        length: T.
        causal: bool.
        groups: for each leaf the list of its heads' groups of queries and of keys, with None for tokens that do not
            exist and another group for each document.
        segments: int (T,), the document of each token.
    """
    if isinstance(pattern, Heads):
        found, first = [], 0
        for count, part in pattern.groups:
            last = first + len(part.leaves())
            own = visible(part, length, causal, groups[first:last], segments)
            found += list(np.broadcast_to(own, (count, length, length)))
            first = last
        return np.stack(found)
    shown = [_leaf(leaf, length, causal, own, segments) for leaf, own in zip(pattern.leaves(), groups, strict=True)]
    heads = max(len(each) for each in shown)
    return np.any([np.broadcast_to(each, (heads, length, length)) for each in shown], axis=0)


def _leaf(leaf, length, causal, groups, segments):
    both = length, length
    if isinstance(leaf, Window):
        return twins.window(*both, leaf.size, causal)[None]
    if isinstance(leaf, Blocks):
        after = leaf.before if leaf.after is None else leaf.after
        return twins.local_blocks(*both, leaf.size, leaf.before, after, causal)[None]
    if isinstance(leaf, Stride):
        return twins.strided(*both, leaf.stride, "far", causal)[None]
    if isinstance(leaf, Summary):
        return twins.fixed(*both, leaf.block_size, leaf.num_summary, leaf.group, "far", causal)[None]
    if isinstance(leaf, ImageBlocks):
        around = leaf.before, leaf.after
        return twins.image_blocks(*both, leaf.width, leaf.block_shape, *around, causal, leaf.order)[None]
    if isinstance(leaf, Nearest | Hashed):
        size = leaf.cluster_size if isinstance(leaf, Nearest) else leaf.bucket_size
        return np.stack([twins.bands(queries, keys, size, causal)[0] for queries, keys in groups])
    allowed = np.zeros(both, bool)
    for i in range(length):
        for j in range(i + 1 if causal else length):
            allowed[i, j] = _near(leaf, i, j, segments)
    return allowed[None]


def _near(leaf, i, j, segments):
    """Whether a dilated window or the first tokens of the query's document show key j to query i."""
    if isinstance(leaf, Dilated):
        return any(abs(i - j) == step * leaf.dilation for step in range(leaf.window))
    begin = i
    while begin > 0 and segments[begin - 1] == segments[i]:
        begin -= 1
    end = i
    while end + 1 < len(segments) and segments[end + 1] == segments[i]:
        end += 1
    return begin <= j <= end and j - begin < leaf.count
