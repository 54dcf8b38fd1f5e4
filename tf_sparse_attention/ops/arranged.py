"""Attention of an arrangement: queries in groups, each group beside the keys it may see.

Arrange, attend, restore: a pattern says how queries and keys are put side by side, and this file does the rest.
"""

from tf_sparse_attention.ops.attend import attend, combine_attended
from tf_sparse_attention.ops.masks import TokenMasks, merge, pick_pairs
from tf_sparse_attention.ops.positions import Distances, NoPosition
from tf_sparse_attention.ops.scores import dense_scores


def attend_arranged(
    arrangement,
    query,
    key,
    value,
    pattern=None,
    masks=TokenMasks(),
    position=NoPosition(),
    span=None,
    return_weights=False,
    **options,
):
    """Computes attention inside the groups of an arrangement and puts the results back in the order of the sequence.

    Args:
        arrangement: what `Grid` is: `queries` and `keys` put a sequence into places, (G, t) and (G, s), `join` puts
            queries back; `query_positions`, `key_positions` and `inside` say what the places hold; `key_length` is S,
            and `offsets` the constant distances (t, s) of places, None where groups differ in them.
        query: scaled queries (B, N, T, H), turned already by a position that turns them.
        key: keys (B, N, S, H), likewise.
        value: values (B, N, S, Hv).
        pattern: bool, broadcastable to (B, N, G, t, s), the places that a query sees; None for all. Places outside the
            sequence and those that `masks` hide are never seen.
        masks: a `TokenMasks`; its `query_mask` is not used here.
        position: a position object of `ops.positions`.
        span: an `ops.span.Span`, or None.
        return_weights: whether to return dense weights as well.
        **options: the other arguments of `attend`.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros where a query has nothing to attend to, and, if asked for, the
        dense weights (B, N, T, S) and the log-sum-exp (B, N, T).
    """
    distances = distances_of(arrangement)
    query = arrangement.queries(query, -2)  # (B, N, G, t, H)
    attended = attend(
        query,
        arrangement.keys(key, -2),
        arrangement.keys(value, -2),
        mask=places_mask(arrangement, pattern, masks),
        bias=position.score_bias(query, distances),
        value_bias=position.value_bias(distances),
        span=None if span is None else span.factor(distances),
        return_weights=return_weights,
        **options,
    )
    positions = arrangement.key_positions()[:, None, :]
    return attended.restored(
        rows=lambda x: arrangement.join(x, -2),
        dense=lambda weights: dense_scores(weights, positions, arrangement.key_length),
    )


def distances_of(arrangement):
    """Returns the `Distances` of the places of an arrangement: constant offsets if it has them, else of positions."""
    if arrangement.offsets is not None:
        return Distances(offsets=arrangement.offsets)
    apart = apart_in_tokens(arrangement)
    return Distances(ranks=apart, tokens=apart)


def apart_in_tokens(arrangement):
    """Returns key position minus query position of all places, int32 (G, t, s)."""
    return arrangement.key_positions()[:, None, :] - arrangement.query_positions()[:, :, None]


def places_mask(arrangement, pattern, masks):
    """Returns which key places a query may attend to, bool broadcastable to (B, N, G, t, s).

    Args:
        arrangement: as in `attend_arranged`.
        pattern: bool, broadcastable to (B, N, G, t, s), or None.
        masks: a `TokenMasks`.
    """
    segments = keys = None
    if masks.query_segments is not None:
        own = arrangement.queries(masks.query_segments, -1)[:, None, :, :, None]
        segments = own == arrangement.keys(masks.key_segments, -1)[:, None, :, None, :]
    if masks.key_mask is not None:
        keys = arrangement.keys(masks.key_mask, -1)[:, None, :, None, :]
    picked = pick_pairs(masks.attention_mask, arrangement.query_positions(), arrangement.key_positions())
    return merge(pattern, arrangement.inside(), keys, segments, picked)


def attend_part(part, near, far, return_log_sum_exp=False):
    """Returns one of the two parts of a factorized pattern, or both in one softmax.

    Args:
        part: "local", "far" or "merged".
        near: function of `return_log_sum_exp` to the `Attended` of the local part.
        far: the same of the other part. For "merged" their keys must not overlap.
        return_log_sum_exp: whether to return the log-sum-exp of what was asked for.
    """
    if part != "merged":
        return (near if part == "local" else far)(return_log_sum_exp)
    attended = combine_attended([near(True), far(True)])
    return attended if return_log_sum_exp else attended._replace(log_sum_exp=None)
