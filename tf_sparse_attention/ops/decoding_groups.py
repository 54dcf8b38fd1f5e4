"""Decoding inside groups of tokens, clusters or buckets: a ring of the last keys for each of them."""

from keras import ops

from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.decoding import (
    Kept,
    empty_places,
    keep,
    keep_positions,
    ring_positions,
    take_positions,
    write,
)
from tf_sparse_attention.ops.gather import stable_order, take_numbers


def empty_rings(batch_size, num_heads, num_groups, size, key_dim, value_dim, dtype):
    """Returns a ring of `size` keys for each of K groups.

    Returns:
        {"key": (B, N, K w, H), "value": (B, N, K w, Hv), "position": int32 (B, N, K w), the positions of keys, and
        "count": int32 (B, N, K), how many keys a group had so far}.
    """
    places = empty_places(batch_size, num_heads, num_groups * size, key_dim, value_dim, dtype)
    position = ops.zeros((batch_size, num_heads, num_groups * size), dtype="int32")
    return {**places, "position": position, "count": ops.zeros((batch_size, num_heads, num_groups), dtype="int32")}


def fill_rings(rings, key, value, groups, lengths):
    """Returns rings that hold the last keys of each group of a sequence.

    Args:
        rings: of `empty_rings`.
        key: float (B, N, T, H), turned by their positions.
        value: float (B, N, T, Hv).
        groups: int32 (B, N, T), the group of each token, in [0, K).
        lengths: int32 (B,), tokens of each row.
    """
    batch, heads, length = shape(groups)
    num_groups, size = _sizes(rings)
    exists = ops.arange(length, dtype="int32")[None, None] < lengths[:, None, None]
    groups = ops.where(exists, groups, num_groups)
    order, _ = stable_order(groups)
    rows = ops.reshape(ops.arange(batch * heads, dtype="int32"), (batch, heads, 1)) * (num_groups + 1)
    ones = ops.ones((batch * heads * length,), dtype="int32")
    total = batch * heads * (num_groups + 1)
    count = ops.segment_sum(ones, ops.reshape(rows + groups, (-1,)), num_segments=total)
    count = ops.reshape(count, (batch, heads, num_groups + 1))[..., :num_groups]
    first = ops.cumsum(count, axis=-1) - count
    places = ops.reshape(first[..., None] + ring_positions(size, count - 1), (batch, heads, num_groups * size))
    positions = take_numbers(order, in_range(places, length))
    return {**keep_positions(rings, key, value, positions), "position": positions, "count": count}


def keep_in_group(rings, key, value, group, index):
    """Returns rings with the key and value (B, N, 1, H) of the token at `index` (B,) in its group (B, N, 1)."""
    _, size = _sizes(rings)
    count = take_numbers(rings["count"], group)
    at = (group * size + count % size)[..., 0]
    return {
        **keep(rings, key, value, at),
        "position": write(rings["position"], index[:, None], at),
        "count": write(rings["count"], count + 1, group[..., 0]),
    }


def kept_in_group(rings, group, index):
    """Returns the `Kept` keys of a group (B, N, 1) for queries at `index` (B,); ranks are those in the group."""
    _, size = _sizes(rings)
    last = take_numbers(rings["count"], group)[..., 0] - 1  # (B, N)
    ranks = ring_positions(size, last)
    places = group * size + ops.arange(size, dtype="int32")
    positions = take_numbers(rings["position"], places)
    key, value = (take_positions(rings[name], places) for name in ("key", "value"))
    return Kept(key, value, ranks >= 0, ranks - last[..., None], positions - index[:, None, None])


def _sizes(rings):
    """Returns the groups and the places of a ring."""
    num_groups = shape(rings["count"])[-1]
    return num_groups, shape(rings["position"])[-1] // num_groups
