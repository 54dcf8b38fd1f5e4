"""Routing attention by the nearest centroid: sort by cluster, attend inside a band, restore the order.

Which keys a query sees depends on tokens up to its own position alone, so it is causal by construction.
"""

from keras import ops

from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.gather import permute_rows, stable_order, take_numbers
from tf_sparse_attention.ops.groups import NOWHERE, with_self_bias
from tf_sparse_attention.ops.local import band, window_grid
from tf_sparse_attention.ops.masks import TokenMasks, merge, pick_pairs
from tf_sparse_attention.ops.positions import Distances, NoPosition
from tf_sparse_attention.ops.random_bits import threefry, word
from tf_sparse_attention.ops.scores import dense_scores


def random_clusters(num_heads, length, num_clusters, seed):
    """Returns clusters that depend on head, position and seed alone, int32 (1, N, T): the paper's random ablation."""
    return random_clusters_at(ops.arange(length, dtype="int32")[None], num_heads, num_clusters, seed)


def random_clusters_at(positions, num_heads, num_clusters, seed):
    """Returns the `random_clusters` of some positions (B, T), int32 (B, N, T).

    A hash and not a draw, so that a position keeps its cluster whatever the length, as decoding needs.
    """
    heads = ops.cast(ops.arange(num_heads, dtype="int32"), "uint32")[None, :, None]
    positions = ops.cast(positions, "uint32")[:, None, :]
    bits = threefry(word(seed % 2**32), word(0), heads, positions)[0]
    return ops.cast(ops.right_shift(bits, word(1)), "int32") % num_clusters


def nearest_attention(
    query,
    value,
    groups,
    cluster_size,
    causal=True,
    mask_self=True,
    masks=TokenMasks(),
    position=NoPosition(),
    dropout=None,
    key=None,
    **returns,
):
    """Computes attention inside clusters with shared queries and keys, O(T cluster_size) after two sorts of integers.

    A token sees the last `cluster_size` tokens of its group up to its own position, itself included, and if not
    causal the `cluster_size` - 1 next ones: a band on the order sorted by (group, position), computed in blocks.
    Source: Roy et al. 2021, section 4. Note: differs from the paper, whose clusters are the `cluster_size` best tokens
    of the whole sequence and so depend on the future.

    Args:
        query: normalised queries, which are the keys too (B, N, T, H).
        value: values (B, N, T, Hv).
        groups: int32 (B or 1, N, T) of `groups_of`.
        cluster_size: keys of a group that a query sees on a side, counting itself.
        causal: whether later tokens are hidden.
        mask_self: whether a token sees itself only when nothing else is in its band.
        masks: a `TokenMasks`, of which only `attention_mask` is used: the rest is in `groups`.
        position: a position object of `ops.positions`; its table goes by rank, rotation and ALiBi by token.
        dropout: an `attend.Dropout`, or None.
        key: keys (B, N, T, H) of the same tokens and groups, where they are not the queries themselves; or None.
        **returns: `return_weights` and `return_log_sum_exp` of `attend`.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros for a token that sees nothing, and, if asked for, the dense
        weights (B, N, T, T) and the log-sum-exp (B, N, T).
    """
    batch, heads, length, _ = shape(query)
    groups = ops.broadcast_to(groups, (batch, heads, length))
    order, inverse = stable_order(groups)
    grid = window_grid(length, length, cluster_size, causal)
    query = permute_rows(position.rotate(query, ops.arange(length)), order, inverse)
    key = query if key is None else permute_rows(position.rotate(key, ops.arange(length)), order, inverse)
    places = grid.queries(query, -2)  # (B, N, G, t, H)
    groups = take_numbers(groups, order)
    seen = ops.where(groups == NOWHERE, 0, groups)  # 0, as the padding of the grid: equal to no query's group
    same = grid.queries(groups, -1)[..., :, None] == grid.keys(seen, -1)[..., None, :]
    at_queries, at_keys = grid.queries(order, -1), grid.keys(order, -1)
    distances = Distances(grid.offsets, tokens=at_keys[..., None, :] - at_queries[..., :, None])
    bias = position.score_bias(places, distances)
    attended = attend(
        places,
        grid.keys(key, -2),
        grid.keys(permute_rows(value, order, inverse), -2),
        mask=merge(
            same, band(grid.offsets, cluster_size, causal), pick_pairs(masks.attention_mask, at_queries, at_keys)
        ),
        bias=with_self_bias(bias, grid.offsets == 0) if mask_self else bias,
        dropout=None if dropout is None else dropout.by_position(at_queries, at_keys),
        value_bias=position.value_bias(distances),
        some=grid.queries(groups != NOWHERE, -1)[..., None] if masks.attention_mask is None else None,
        **returns,
    )
    return attended.restored(
        rows=lambda x: permute_rows(grid.join(x, -2), inverse, order),
        dense=lambda weights: dense_scores(weights, at_keys[..., None, :], length),
    )
