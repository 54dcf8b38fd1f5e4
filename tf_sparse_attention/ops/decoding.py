"""Decoding token by token: places that keep keys and values, and the attention of one query a row to them."""

from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import Slots, attend
from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.gather import take_rows
from tf_sparse_attention.ops.groups import with_self_bias
from tf_sparse_attention.ops.positions import Distances, NoPosition


class Kept(NamedTuple):
    """The kept keys that a query may see, on s places.

    Attributes:
        key: float (B, N, s, H), turned by their positions.
        value: float (B, N, s, Hv).
        seen: bool (B, N or 1, s), which places the query sees.
        ranks: int32 (B, N or 1, s), how far each is from the query, in the order that relative positions go by.
        tokens: int32, likewise, how far in positions.
    """

    key: Any
    value: Any
    seen: Any
    ranks: Any
    tokens: Any

    @classmethod
    def at(cls, key, value, positions, index, seen=None, remembered=None):
        """Returns keys at positions (B, N or 1, s) for queries at `index` (B,).

        Those before 0 are not there, unless `remembered` bool (B, 1, s) says that they are.
        """
        apart = positions - index[:, None, None]
        there = positions >= 0
        there = there if remembered is None else ops.logical_or(there, remembered)
        return cls(key, value, there if seen is None else ops.logical_and(seen, there), apart, apart)


def attend_kept(query, kept, index, position=NoPosition(), slots=None, span=None, mask_self=False, **returns):
    """Computes attention of one query a row to kept keys.

    Args:
        query: scaled queries (B, N, 1, H), not turned.
        kept: a `Kept`.
        index: int32 (B,), the position of each query.
        position: a position object of `ops.positions`.
        slots: further keys and values of `attend`, or None.
        span: an `ops.span.Span`, or None.
        mask_self: whether a query sees the key of its own position only when it sees nothing else.
        **returns: `return_log_sum_exp` of `attend`.

    Returns:
        An `Attended`: output (B, N, 1, Hv).
    """
    turned = position.rotate(query, index[:, None, None])[:, :, None]  # (B, N, 1, 1, H)
    key, value = kept.key[:, :, None], kept.value[:, :, None]
    batch, heads, size = shape(kept.key)[:3]

    def beside(x):
        return ops.broadcast_to(x[:, :, None, None], (batch, heads, 1, 1, size))

    distances = Distances(ranks=beside(kept.ranks), tokens=beside(kept.tokens))
    bias = position.score_bias(turned, distances)
    if mask_self:
        bias = with_self_bias(bias, distances.tokens == 0)
    attended = attend(
        turned,
        key,
        value,
        mask=beside(kept.seen),
        bias=bias,
        slots=None if slots is None else Slots(*slots)._replace(query=query[:, :, None]),
        span=None if span is None else span.factor(distances),
        value_bias=position.value_bias(distances),
        **returns,
    )
    log_sum_exp = None if attended.log_sum_exp is None else attended.log_sum_exp[:, :, 0]
    return attended._replace(output=attended.output[:, :, 0], log_sum_exp=log_sum_exp)


def write(places, x, at):
    """Returns places with one of each row and head written anew.

    Args:
        places: tensor (B, N, S) or (B, N, S, H).
        x: tensor (B or 1, N or 1) or (B, N, 1, H).
        at: int32 (B, N or 1), which place.
    """
    batch, heads, size, *rest = shape(places)
    at = ops.reshape(ops.broadcast_to(at, (batch, heads)), (-1,))
    rows = ops.reshape(places, (batch * heads * size, *rest))
    x = ops.broadcast_to(ops.reshape(x, (*shape(x)[:2], *rest)), (batch, heads, *rest))
    index = ops.arange(batch * heads, dtype="int32") * size + at
    rows = ops.scatter_update(rows, index[:, None], ops.cast(ops.reshape(x, (batch * heads, *rest)), rows.dtype))
    return ops.reshape(rows, (batch, heads, size, *rest))


def ring_positions(size, index):
    """Returns the positions that the places of rings hold once position `index` is written, negative where none is.

    Position p is kept at place p mod `size`, so a place holds the last position that ended there.

    Args:
        size: R, places of a ring.
        index: int32 (...), the last position that was written, -1 for none.

    Returns:
        int32 (..., R).
    """
    # Made positive first: runtimes of other formats differ in the remainders of negative numbers.
    ahead = size - ops.arange(size, dtype="int32")
    return index[..., None] - (index[..., None] + ahead) % size


def take_positions(x, positions):
    """Returns the rows of tokens (B, N, T, H) at positions (B, N or 1, S), anything where they are outside."""
    batch, heads, length, _ = shape(x)
    positions = ops.broadcast_to(positions, (batch, heads, shape(positions)[-1]))
    return take_rows(x, in_range(positions, length))


def empty_places(batch_size, num_heads, size, key_dim, value_dim, dtype):
    """Returns places for keys and values, {"key": (B, N, S, H), "value": (B, N, S, Hv)}."""
    sizes = {"key": key_dim, "value": value_dim}
    return {name: ops.zeros((batch_size, num_heads, size, channels), dtype=dtype) for name, channels in sizes.items()}


def keep(places, key, value, at):
    """Returns places with the key and value (B, N, 1, H) of one token in each row, at place `at` (B, N or 1)."""
    return {**places, "key": write(places["key"], key, at), "value": write(places["value"], value, at)}


def keep_positions(places, key, value, positions):
    """Returns places that hold the keys and values of a sequence (B, N, T, H) at positions (B or 1, N or 1, S)."""
    positions = ops.broadcast_to(positions, (shape(key)[0], *shape(positions)[1:]))
    new = {"key": take_positions(key, positions), "value": take_positions(value, positions)}
    return {**places, **{name: ops.cast(x, places[name].dtype) for name, x in new.items()}}


def keep_last(places, key, value, lengths):
    """Returns rings that hold the last keys and values of rows of `lengths` int32 (B,) tokens, and what was before."""
    positions = ring_positions(shape(places["key"])[2], lengths - 1)[:, None]
    new, is_new = keep_positions(places, key, value, positions), (positions >= 0)[..., None]
    return {**places, **{name: ops.where(is_new, new[name], places[name]) for name in ("key", "value")}}


def keep_memory(places, key, value, seen):
    """Returns rings that hold the last keys and values of earlier text, the position of whose last one is -1.

    Args:
        places: rings of R places; they get "remembered", bool (B, R), where a place that no token was written to since
            holds something that is seen.
        key: float (B, N, L, H), turned by their positions.
        value: float (B, N, L, Hv).
        seen: bool (B, L).
    """
    length, size = shape(key)[2], shape(places["key"])[2]
    at = ops.arange(size, dtype="int32") + (length - size)
    seen = ops.logical_and(ops.take(seen, ops.maximum(at, 0), axis=1), at >= 0)
    return {**keep_positions(places, key, value, at[None, None]), "remembered": seen}


def keep_next(places, key, value, index):
    """Returns rings with the token at position `index` (B,) in place of the one that is longest there."""
    return keep(places, key, value, (index % shape(places["key"])[2])[:, None])


def kept_last(places, index, first=None):
    """Returns the `Kept` keys of rings for queries at `index` (B,), from position `first` (B,) on if it is given."""
    positions = ring_positions(shape(places["key"])[2], index)[:, None]
    seen = None if first is None else positions >= first[:, None, None]
    remembered = places["remembered"][:, None] if "remembered" in places else None
    return Kept.at(places["key"], places["value"], positions, index, seen, remembered)


def at_most(size, limit):
    """Returns a number of places, or the limit where that is known to be less."""
    return min(size, limit) if isinstance(size, int) and isinstance(limit, int) else size
