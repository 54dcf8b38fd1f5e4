"""Decoding across sequences: the keys of another, complete sequence that one query a row sees."""

from keras import ops

from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.decoding import Kept, at_most, take_positions
from tf_sparse_attention.ops.gather import stable_order, take_numbers, take_rows
from tf_sparse_attention.ops.masks import merge


def sequence_cache(key, value, mask):
    """Returns keys and values of a sequence by name, and the mask, bool (B, S), unless it is None."""
    places = {"key": key, "value": value}
    return places if mask is None else {**places, "mask": mask}


def kept_run(places, index, first, size):
    """Returns the `Kept` keys of a run of positions, of which no more than the run are read.

    Args:
        places: of `sequence_cache`, with keys (B, N, S, H), turned by their positions, and values (B, N, S, Hv).
        index: int32 (B,), the positions of the queries.
        first: int32 (B,), the first position of the run, which may begin before the sequence and end after it.
        size: positions of the run, an integer.
    """
    key, value, mask = places["key"], places["value"], places.get("mask")
    length, first = shape(key)[2], first[:, None, None]
    mask = None if mask is None else mask[:, None]
    if isinstance(length, int) and length <= size:
        positions = ops.arange(length, dtype="int32") + ops.zeros_like(first)
        inside = ops.logical_and(positions >= first, positions < first + size)
    else:
        positions = first + ops.arange(size, dtype="int32")  # (B, 1, s)
        inside = positions < length
        key, value = take_positions(key, positions), take_positions(value, positions)
        mask = None if mask is None else take_numbers(mask, in_range(positions, length))
    return Kept.at(key, value, positions, index, merge(inside, mask))


def sort_keys(key, value, groups):
    """Returns the keys of a sequence in the order of (group, position).

    Args:
        key: float (B, N, S, H), turned by their positions.
        value: float (B, N, S, Hv).
        groups: int32 (B, N, S); a key that does not exist is in a group of no query, greater than all others.

    Returns:
        {"key", "value", "group": int32 (B, N, S), "position": likewise}.
    """
    order, _ = stable_order(groups)
    places = {"key": take_rows(key, order), "value": take_rows(value, order)}
    return {**places, "group": take_numbers(groups, order), "position": order}


def kept_band(places, group, index, size):
    """Returns the `Kept` keys of a band: the last `size` of a group up to a position, and the `size` - 1 next ones.

    Args:
        places: of `sort_keys`.
        group: int32 (B, N, 1), the groups of the queries.
        index: int32 (B,), their positions.
        size: keys on a side, counting the one at the position of the query.
    """
    groups, positions = places["group"], places["position"]
    length, index = shape(groups)[-1], index[:, None, None]
    size = at_most(size, length)
    passed = ops.logical_or(groups < group, ops.logical_and(groups == group, positions <= index))
    last = ops.sum(ops.cast(passed, "int32"), axis=-1, keepdims=True) - 1  # (B, N, 1)
    ranks = ops.arange(1 - size, size, dtype="int32")[None, None]
    at = last + ranks
    inside = ops.logical_and(at >= 0, at < length)
    at = in_range(at, length)
    seen = ops.logical_and(inside, take_numbers(groups, at) == group)
    key, value = take_rows(places["key"], at), take_rows(places["value"], at)
    return Kept(key, value, seen, ranks, take_numbers(positions, at) - index)
