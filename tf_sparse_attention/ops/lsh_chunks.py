"""Attention in chunks of hashed tokens as published (Kitaev et al. 2020, "Reformer"), which is not causal."""

from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import attend, combine_attended
from tf_sparse_attention.ops.blocks import join, shape, slice_axis, split
from tf_sparse_attention.ops.gather import permute_rows, stable_order, take_member_numbers, take_numbers, take_rows
from tf_sparse_attention.ops.groups import NOWHERE, with_self_bias
from tf_sparse_attention.ops.masks import TokenMasks, merge, pick_pairs
from tf_sparse_attention.ops.positions import Distances, NoPosition
from tf_sparse_attention.ops.scores import dense_scores


class Chunks(NamedTuple):
    """The tokens of one round by (group, position), cut into G chunks of w places. All int32.

    Attributes:
        order: (B, N, T), the token at each rank.
        inverse: (B, N, T), the rank of each token.
        positions: (B, N, G, w), the token at each place, 0 beyond the end.
        groups: (B, N, G, w), its group, 0 beyond the end.
    """

    order: Any
    inverse: Any
    positions: Any
    groups: Any

    @classmethod
    def of(cls, groups, size):
        """Returns the chunks of `size` places of tokens in groups (B, N, T) as `groups_of` numbers them."""
        num_chunks = (shape(groups)[-1] + size - 1) // size
        order, inverse = stable_order(groups)
        numbers = [split(x, size, -1, num_chunks) for x in (order, take_numbers(groups, order))]
        return cls(order, inverse, *numbers)

    @property
    def present(self):
        """Where a place holds a token that exists, bool (B, N, G, w)."""
        return ops.logical_and(self.groups > 0, self.groups != NOWHERE)

    def arrange(self, x):
        """Returns tokens in chunks: (B, N, T, H) to (B, N, G, w, H)."""
        num_chunks, size = shape(self.positions)[-2:]
        return split(permute_rows(x, self.order, self.inverse), size, -2, num_chunks)

    def restore(self, x):
        """Returns chunks in the order of the tokens: (B, N, G, w, H) to (B, N, T, H)."""
        return permute_rows(join(x, -2, shape(self.order)[-1]), self.inverse, self.order)

    def last(self):
        """Returns positions of the places of the last chunk with tokens that exist, and whether each exists: (B, N, w).

        Not those of chunk G - 1, where padding may be: a row must not know how long its batch is.
        """
        present = ops.cast(self.present, "int32")
        count = ops.sum(present, axis=(-2, -1))
        number = ops.maximum(count - 1, 0)[..., None] // shape(self.positions)[-1]
        return [take_rows(x, number)[:, :, 0] for x in (self.positions, present)]


class Beside(NamedTuple):
    """The keys beside each chunk of queries: 2 w places, those of the chunk before and of the chunk itself.

    Attributes:
        own: `Chunks` of the keys in this round.
        last: what `Chunks.last` says of the round before, which chunk 0 looks back to; of the last one in round 0.
    """

    own: Chunks
    last: Any

    @property
    def positions(self):
        """The token at each place, int32 (B, N, G, 2 w)."""
        return _look_back(self.own.positions, self.last[0], -2)

    @property
    def present(self):
        """Where a place holds a token that exists, bool (B, N, G, 2 w)."""
        return _look_back(ops.cast(self.own.present, "int32"), self.last[1], -2) > 0

    def arrange(self, x):
        """Returns keys beside the queries: (B, N, T, H) to (B, N, G, 2 w, H)."""
        return _look_back(self.own.arrange(x), take_rows(x, self.last[0]), -3)


def _look_back(own, last, axis):
    """Returns each chunk behind the one before it, `last` before the first; `axis` is that of the chunks, negative."""
    before = [ops.expand_dims(last, axis), slice_axis(own, axis, 0, shape(own)[axis] - 1)]
    return ops.concatenate([ops.concatenate(before, axis), own], axis + 1)


def chunk_attention(
    query,
    key,
    value,
    query_groups,
    key_groups,
    chunk_size,
    causal=False,
    mask_self=True,
    masks=TokenMasks(),
    position=NoPosition(),
    dropout=None,
    return_weights=False,
    return_log_sum_exp=False,
):
    """Computes attention in chunks of the order by (round, group, position), O(T chunk_size) a round after sorting.

    A query sees the keys of its chunk and of the chunk before. Chunk 0 of a round looks back to the last chunk of the
    round before, that of round 0 to the last of all, as published. Keys that several rounds or chunks show count as
    often; the results of the rounds are merged by their log-sum-exp. Which keys share a chunk depends on the whole
    sequence: not causal, whatever `causal` hides. Source: Kitaev et al. 2020, section 2.

    Any length works: the last chunk of a round may hold fewer tokens, and what does not exist stands behind it and is
    no key. A sequence of one chunk sees each key twice, which is as if once.

    Note: differs from the published code, where padding is hashed, takes places and pushes tokens into other chunks;
    and where queries are the keys. Keys of their own are sorted by their own groups, and chunk c of the queries stands
    beside the chunks c and c - 1 of the keys (as in Daras et al. 2020, "SMYRF").

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, N, T, H).
        value: values (B, N, T, Hv).
        query_groups: list of R int32 (B, N, T) of `groups.groups_of`, one for each round.
        key_groups: likewise, the same list where queries are the keys.
        chunk_size: w, places in a chunk.
        causal: whether keys at later positions are hidden.
        mask_self: whether a token sees itself only when it sees nothing else in any round.
        masks: a `TokenMasks`, of which `attention_mask` and segments are used: the rest is in the groups.
        position: a position object of `ops.positions`, by token.
        dropout: an `attend.Dropout`, or None.
        return_weights: whether to return dense weights as well.
        return_log_sum_exp: whether to return the log-sum-exp over all rounds.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros for a query that does not exist or sees nothing, and, if asked
        for, the dense weights (B, N, T, T) and the log-sum-exp (B, N, T).
    """
    length = shape(query)[-2]
    size = min(chunk_size, length) if isinstance(length, int) else chunk_size
    query, key = (position.rotate(x, ops.arange(length)) for x in (query, key))
    asking = [Chunks.of(groups, size) for groups in query_groups]
    answering = asking if key_groups is query_groups else [Chunks.of(groups, size) for groups in key_groups]
    rounds = []
    for number, (own, chunks) in enumerate(zip(asking, answering, strict=True)):
        beside = Beside(chunks, answering[number - 1].last())
        apart = beside.positions[..., None, :] - own.positions[..., :, None]
        distances = Distances(ranks=apart, tokens=apart)
        places = own.arrange(query)  # (B, N, G, w, H)
        bias = position.score_bias(places, distances)
        attended = attend(
            places,
            beside.arrange(key),
            beside.arrange(value),
            mask=_pairs_mask(own, beside, apart, causal, masks),
            bias=with_self_bias(bias, apart == 0) if mask_self else bias,
            dropout=None if dropout is None else dropout.by_position(own.positions, beside.positions),
            value_bias=position.value_bias(distances),
            return_weights=return_weights,
            return_log_sum_exp=return_log_sum_exp or len(asking) > 1,
        )
        columns = beside.positions[..., None, :]
        rounds.append(attended.restored(own.restore, lambda weights, at=columns: dense_scores(weights, at, length)))
    return combine_attended(rounds)


def _pairs_mask(own, beside, apart, causal, masks):
    """Returns which places a query may attend to, bool (B, N, G, w, 2 w)."""
    segments = None
    if masks.query_segments is not None:
        batch, heads, length = shape(own.order)
        numbers = [
            take_member_numbers(ops.broadcast_to(x[:, None, :], (batch, heads, length)), side.positions)
            for x, side in ((masks.query_segments, own), (masks.key_segments, beside))
        ]
        segments = numbers[0][..., :, None] == numbers[1][..., None, :]
    return merge(
        own.present[..., :, None],
        beside.present[..., None, :],
        apart <= 0 if causal else None,
        segments,
        pick_pairs(masks.attention_mask, own.positions, beside.positions),
    )
