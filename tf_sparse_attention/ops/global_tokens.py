"""Global tokens beside a local pattern: every query sees them, and they see every key."""

from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import Attended, Dropout, attend, combine_attended, score_dtype
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.gather import pick_rows
from tf_sparse_attention.ops.masks import TokenMasks, merge, pick_pairs


class GlobalTokens(NamedTuple):
    """The global tokens of a batch.

    Attributes:
        marks: bool (B, T), which tokens they are.
        positions: int (B, M), their positions in order; T for places that are not taken.
        counts: int (B, M), how often each counts as a key.
        places: int (B, T), the place among M of each token that is global.
    """

    marks: Any
    positions: Any
    counts: Any
    places: Any


def find_global(counts, key_mask, num_global):
    """Returns the `GlobalTokens` of a batch, in O(T) and without a sort.

    Args:
        counts: int or bool (B, T), zero for tokens that are not global.
        key_mask: bool (B, T) or None; padding is never global.
        num_global: M, places. Tokens beyond the first M are not global.
    """
    counts = ops.cast(counts, "int32")
    counts = counts if key_mask is None else ops.where(key_mask, counts, 0)
    batch, length = shape(counts)
    places = ops.cumsum(ops.cast(counts > 0, "int32"), axis=-1) - 1
    marks = ops.logical_and(counts > 0, places < num_global)
    nearness = ops.where(marks, length - ops.arange(length, dtype="int32"), 0)
    nearness = ops.concatenate([nearness, ops.zeros((batch, num_global), "int32")], axis=-1)  # T may be less than M
    positions = length - ops.top_k(nearness, num_global)[0]
    found = ops.take_along_axis(counts, ops.minimum(positions, length - 1), axis=-1)
    counts = ops.where(positions < length, found, 0)
    return GlobalTokens(marks, positions, counts, ops.clip(places, 0, num_global - 1))


def but_global(masks, tokens):
    """Returns the masks by which a local pattern leaves out the global tokens, which are keys of their own."""
    return masks._replace(key_mask=merge(masks.key_mask, ops.logical_not(tokens.marks)))


def attend_with_global(near, query, key, value, own, tokens, masks=TokenMasks(), dropout=None, return_weights=False):
    """Adds global tokens to attention of a local pattern, in O(T M) time and memory (Beltagy et al. 2020, section 3.1).

    A token attends to the keys of the pattern and to the global tokens in one softmax, to a global token as often as it
    counts. A global token attends to all tokens.

    Args:
        near: `Attended` of the pattern without the global keys, with log-sum-exp, and weights (B, N, T, S) if wanted.
        query: scaled queries (B, N, T, H).
        key: keys (B, N, T, H).
        value: values (B, N, T, Hv).
        own: queries (scaled), keys and values by which the global tokens attend.
        tokens: a `GlobalTokens`.
        masks: the `TokenMasks` of the call.
        dropout: a `Dropout`, or None.
        return_weights: whether to return the weights (B, N, T, T).

    Returns:
        An `Attended` without log-sum-exp.
    """
    dropout = None if dropout is None else Dropout(dropout.rate, dropout.seed)
    everywhere = ops.arange(shape(query)[2], dtype="int32")[None, None, None]  # (1, 1, 1, T)
    exists = (tokens.counts > 0)[:, None, None, :]  # (B, 1, 1, M)
    at = tokens.positions[:, None, None, :]
    far = attend(
        query,
        _of_places(key, tokens),
        _of_places(value, tokens),
        mask=merge(exists, _pairs(masks, everywhere, at)),
        bias=ops.log(ops.cast(ops.maximum(tokens.counts, 1), score_dtype(query.dtype)))[:, None, None, :],
        dropout=dropout,
        return_weights=return_weights,
        return_log_sum_exp=True,
    )
    if return_weights:
        columns = ops.one_hot(tokens.positions, shape(query)[2], dtype=far.weights.dtype)[:, None]  # (B, 1, M, T)
        far = far._replace(weights=ops.matmul(far.weights, columns))
    whole = attend(
        _of_places(own[0], tokens),
        own[1],
        own[2],
        mask=merge(_keys(masks), _pairs(masks, at, everywhere)),
        dropout=dropout,
        return_weights=return_weights,
    )
    ordinary = combine_attended([near, far])
    return Attended(*(_rows(tokens, *both) for both in zip(whole[:2], ordinary[:2], strict=True)))


def _rows(tokens, own, others):
    """Returns the rows (B, N, T, X) of others, and of (B, N, M, X) where tokens are global; None of None."""
    if own is None or others is None:
        return None
    exists = tokens.counts > 0
    index, back, exists = (_for_heads(x, own) for x in (tokens.places, _inside(tokens), exists))
    return ops.where(tokens.marks[:, None, :, None], pick_rows(own, index, back, exists), others)


def _of_places(x, tokens):
    """Returns the rows (B, N, M, X) of the global tokens of (B, N, T, X), any row where a place is not taken."""
    return pick_rows(x, *(_for_heads(x_, x) for x_ in (_inside(tokens), tokens.places, tokens.marks)))


def _inside(tokens):
    return ops.minimum(tokens.positions, shape(tokens.marks)[1] - 1)


def _for_heads(x, heads):
    """Returns (B, X) as (B, N, X)."""
    batch, length = shape(x)
    return ops.broadcast_to(x[:, None], (batch, shape(heads)[1], length))


def _keys(masks):
    return None if masks.key_mask is None else masks.key_mask[:, None, None, :]


def _pairs(masks, queries, keys):
    """Returns what the masks say of pairs of positions (B or 1, 1, 1, t) and (B or 1, 1, 1, s), or None."""
    picked = pick_pairs(masks.attention_mask, queries, keys)
    picked = None if picked is None else picked[:, :, 0]  # (B or 1, N or 1, t or 1, s or 1)
    if masks.query_segments is None:
        return picked
    asking, asked = (_of_tokens(x, p) for x, p in ((masks.query_segments, queries), (masks.key_segments, keys)))
    return merge(picked, (asking[:, :, None] == asked[:, None, :])[:, None])


def _of_tokens(x, positions):
    """Returns (B, T) at positions (B or 1, 1, 1, t), those outside clipped."""
    index = ops.broadcast_to(positions[:, 0, 0], (shape(x)[0], shape(positions)[-1]))
    return ops.take_along_axis(x, ops.clip(index, 0, shape(x)[1] - 1), axis=1)
