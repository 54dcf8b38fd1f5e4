"""Which keys a composition of patterns shows a query: in NumPy, from definitions alone."""

import numpy as np

from tests.oracle import definitions
from tf_sparse_attention import patterns
from tf_sparse_attention.patterns.pattern import primitives


def of_head(pattern, index):
    """Return the pattern of a head without `Heads`, its number among the heads that have it, and its first leaf's."""
    if not isinstance(pattern, patterns.Heads):
        return pattern, index, 0
    first_leaf = 0
    for count, part in pattern.groups:
        if index < count:
            return part, index, first_leaf
        index, first_leaf = index - count, first_leaf + len(primitives(part))
    raise ValueError(f"`index` must be that of a head of `pattern`. Received: pattern={pattern!r}.")


def visible(pattern, lengths, causal, groups, segments, successors=False):
    """Return which keys a head sees, bool (T, S), before padding and documents are left out.

    Args:
        pattern: a pattern without `Heads`.
        lengths: pair (T, S).
        causal: bool.
        groups: for each leaf the groups of queries and of keys, with None for tokens that do not exist and another
            group for each document; of `TopKeys` the cluster of each query and the keys of each cluster, of
            `SelectedBlocks` and `RetrievedClusters` what a query sees.
        segments: int (T,), the document of each token; None where nothing is packed.
        successors: whether of the parts that show keys with the values of successors, or of the others.
    """
    leaves = [
        pair
        for pair in zip(primitives(pattern), groups, strict=True)
        if isinstance(pair[0], patterns.Successors) == successors
    ]
    seen = [np.zeros(lengths, bool), *(_leaf(leaf, lengths, causal, own, segments) for leaf, own in leaves)]
    return np.any(seen, axis=0)


def _leaf(leaf, lengths, causal, groups, segments):
    if isinstance(leaf, patterns.Successors):
        if isinstance(leaf.pattern, patterns.Window):
            return definitions.earlier_window(*lengths, leaf.pattern.size)
        return definitions.bands(*groups, _size_of(leaf.pattern), causal=True, earlier=True)[0]
    if isinstance(leaf, patterns.Window):
        return definitions.window(*lengths, leaf.size, causal)
    if isinstance(leaf, patterns.Blocks):
        after = leaf.before if leaf.after is None else leaf.after
        return definitions.local_blocks(*lengths, leaf.size, leaf.before, after, causal)
    if isinstance(leaf, patterns.SelectedBlocks | patterns.RetrievedClusters):  # what the queries chose
        return groups
    if isinstance(leaf, patterns.Stride):
        return definitions.strided(*lengths, leaf.stride, "far", causal)
    if isinstance(leaf, patterns.Summary):
        return definitions.fixed(*lengths, leaf.block_size, leaf.num_summary, leaf.group, "far", causal)
    if isinstance(leaf, patterns.ImageBlocks):
        around = leaf.before, leaf.after
        return definitions.image_blocks(*lengths, leaf.width, leaf.block_shape, *around, causal, leaf.order)
    if isinstance(leaf, patterns.TopKeys):
        return definitions.chosen_keys(*groups, lengths[1])[0]
    if isinstance(leaf, patterns.Nearest | patterns.Hashed):
        return definitions.bands(*groups, _size_of(leaf), causal)[0]
    allowed = np.zeros(lengths, bool)
    for i in range(lengths[0]):
        for j in range(min(i + 1, lengths[1]) if causal else lengths[1]):
            allowed[i, j] = _near(leaf, i, j, segments)
    return allowed


def _size_of(leaf):
    return leaf.cluster_size if isinstance(leaf, patterns.Nearest) else leaf.bucket_size


def _near(leaf, i, j, segments):
    """Whether a dilated window or the first tokens of the query's document show key j to query i."""
    if isinstance(leaf, patterns.Dilated):
        return any(abs(i - j) == step * leaf.dilation for step in range(leaf.window))
    if segments is None:
        return j < leaf.count
    begin = i
    while begin > 0 and segments[begin - 1] == segments[i]:
        begin -= 1
    end = i
    while end + 1 < len(segments) and segments[end + 1] == segments[i]:
        end += 1
    return begin <= j <= end and j - begin < leaf.count
