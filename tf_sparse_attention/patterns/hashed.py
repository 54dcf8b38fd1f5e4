"""LSH attention: hash buckets, causal by construction or in chunks as published."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.blocks import join, shape, slice_axis, split
from tf_sparse_attention.ops.gather import permute_rows, stable_order, take_member_numbers, take_numbers, take_rows
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.groups import NO_GROUP
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.patterns.arrangement import Arrangement, Numbers
from tf_sparse_attention.patterns.group_band import GroupBand, check_sizes
from tf_sparse_attention.patterns.pattern import Call, Known, Pattern
from tf_sparse_attention.patterns.token_info import Place
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Hashed(GroupBand):
    """The last `bucket_size` keys of the query's own hash bucket, causal by construction.

    The bucket of a vector is the one of num_buckets / 2 random axes and their opposites that it is nearest to. Several
    rounds of other axes are a union: `Hashed(16, 64) | Hashed(16, 64, round=1)`. Source: Kitaev et al. 2020.

    Args:
        num_buckets: K, an even number.
        bucket_size: w, keys of its bucket that a query sees on a side, counting itself.
        round: number of the round, from 0; each has axes of its own. Default 0.

    Raises:
        ValueError: for a wrong argument.
    """

    num_buckets: int
    bucket_size: int
    round: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "num_buckets", "bucket_size")
        checks.check_count("round", self.round, minimum=0)
        if self.num_buckets % 2:
            raise ValueError(f"`num_buckets` must be even. Received: num_buckets={self.num_buckets}.")

    @property
    def num_groups(self) -> int:
        return self.num_buckets

    @property
    def band(self) -> int:
        return self.bucket_size


@dataclasses.dataclass(frozen=True)
class HashedChunk(Pattern):
    """The query's chunk of the tokens sorted by bucket, and the chunk before; never causal (Kitaev et al. 2020).

    Chunk 0 of a round looks back to the last chunk of the round before, that of round 0 to the last of all. Which keys
    share a chunk depends on the whole sequence. What is known of the tokens is an `ChunkedRounds`.

    Any length works: the last chunk of a round may hold fewer tokens, and padding comes after it and is
    no key. A sequence of one chunk sees each key twice, which is as if once.

    Note: differs from the published code, where padding is hashed, takes slots and pushes tokens into other chunks; and
    where queries are the keys. Keys of their own are sorted by their own groups, and chunk c of the queries sees
    the chunks c and c - 1 of the keys (as in Daras et al. 2020, "SMYRF").

    Args:
        num_buckets: K.
        chunk_size: w, tokens of a chunk.
        round: number of the round.
    """

    num_buckets: int
    chunk_size: int
    round: int = 0

    by_content = True
    causal_selection = False

    @property
    def num_groups(self) -> int:
        """How many buckets there are."""
        return self.num_buckets

    @property
    def reach(self) -> int:
        return self.chunk_size - 1

    def visible(self, query: Place, key: Place) -> tuple[Tensor, ...]:
        back = query.chunk - key.chunk
        round_before = query.chunk + 1 - key.is_last == 0  # chunk 0 and the last one, which LiteRT has no `&` for
        return (back == 0) | (back == 1) | round_before, key.exists == 1, query.exists == 1

    def arrange(self, call: Call, known: Known = None) -> Arrangement:
        return known.grid(self.round)

    def describe(self, known: "ChunkedRounds") -> Numbers:
        return known.numbers(self.round)

    def cache_unsupported_reason(self) -> str | None:
        return "which keys share a chunk depends on later tokens"


class Chunks(NamedTuple):
    """The tokens of one round by (group, position), cut into G chunks of w slots. All int32.

    Attributes:
        order: (B, N, T), the token at each rank.
        inverse: (B, N, T), the rank of each token.
        positions: (B, N, G, w), the token at each slot, 0 beyond the end.
        groups: (B, N, G, w), its group, 0 beyond the end.
    """

    order: Tensor
    inverse: Tensor
    positions: Tensor
    groups: Tensor

    @classmethod
    def of(cls, groups: Tensor, size: Size) -> Self:
        """Returns the chunks of `size` slots of tokens in groups (B, N, T) as `groups_of` numbers them."""
        num_chunks = (shape(groups)[-1] + size - 1) // size
        order, inverse = stable_order(groups)
        numbers = [split(x, size, -1, num_chunks) for x in (order, take_numbers(groups, order))]
        return cls(order, inverse, *numbers)

    @property
    def present(self) -> Tensor:
        """Where a slot holds a token that exists, bool (B, N, G, w)."""
        return ops.logical_and(self.groups > 0, self.groups != NO_GROUP)

    def arrange(self, x: Tensor) -> Tensor:
        """Returns tokens in chunks: (B, N, T, H) to (B, N, G, w, H)."""
        num_chunks, size = shape(self.positions)[-2:]
        return split(permute_rows(x, self.order, self.inverse), size, -2, num_chunks)

    def restore(self, x: Tensor) -> Tensor:
        """Returns chunks in the order of the tokens: (B, N, G, w, H) to (B, N, T, H)."""
        return permute_rows(join(x, -2, shape(self.order)[-1]), self.inverse, self.order)

    def last(self) -> list[Tensor]:
        """Returns positions of the slots of the last chunk with tokens that exist, and whether each exists: (B, N, w).

        Not those of chunk G - 1, where padding may be: a row must not know how long its batch is.
        """
        present = ops.cast(self.present, "int32")
        count = ops.sum(present, axis=(-2, -1))
        number = ops.maximum(count - 1, 0)[..., None] // shape(self.positions)[-1]
        return [take_rows(x, number)[:, :, 0] for x in (self.positions, present)]


class KeyChunks(NamedTuple):
    """The keys beside each chunk of queries: 2 w slots, those of the chunk before and of the chunk itself.

    Attributes:
        own: `Chunks` of the keys in this round.
        last: what `Chunks.last` says of the round before, which chunk 0 looks back to; of the last one in round 0.
    """

    own: Chunks
    last: list[Tensor]

    @property
    def positions(self) -> Tensor:
        """The token at each slot, int32 (B, N, G, 2 w)."""
        return _look_back(self.own.positions, self.last[0], -2)

    @property
    def present(self) -> Tensor:
        """Where a slot holds a token that exists, bool (B, N, G, 2 w)."""
        return _look_back(ops.cast(self.own.present, "int32"), self.last[1], -2) > 0

    def arrange(self, x: Tensor) -> Tensor:
        """Returns keys beside the queries: (B, N, T, H) to (B, N, G, 2 w, H)."""
        return _look_back(self.own.arrange(x), take_rows(x, self.last[0]), -3)


def _look_back(own, last, axis):
    """Returns each chunk behind the one before it, `last` before the first; `axis` is that of the chunks, negative."""
    before = [ops.expand_dims(last, axis), slice_axis(own, axis, 0, shape(own)[axis] - 1)]
    return ops.concatenate([ops.concatenate(before, axis), own], axis + 1)


class ChunkGrid(Arrangement):
    """The chunks of queries of one round, each beside the keys of its chunk and of the one before.

    Args:
        queries: `Chunks` of the queries.
        keys: `KeyChunks`.
    """

    is_exact = True
    sorts_tokens = True

    def __init__(self, queries: Chunks, keys: KeyChunks) -> None:
        self._queries, self._keys = queries, keys
        self.key_length = shape(keys.own.order)[-1]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._numbers(x, self._queries, self._queries) if axis == -1 else self._queries.arrange(x)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            return self._of_keys(self._numbers(x, self._keys.own, self._keys))
        return self._keys.arrange(x)

    def _numbers(self, x, tokens, slots):
        return take_member_numbers(ops.broadcast_to(x, shape(tokens.order)), slots.positions)

    def _of_keys(self, x):
        return repeat_key_heads(x, self._queries.order.shape[1])

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._queries.restore(x)

    def query_positions(self) -> Tensor:
        return self._queries.positions

    def key_positions(self) -> Tensor:
        return self._of_keys(self._keys.positions)

    def inside(self) -> Tensor:
        return merge(self._queries.present[..., :, None], self._of_keys(self._keys.present)[..., None, :])


class ChunkedRounds:
    """The tokens of all rounds in chunks, in the order of (round, group, position).

    Args:
        query_groups: list of R int32 (B, N, T) of `groups.groups_of`, one for each round.
        key_groups: likewise, the same list where queries are the keys.
        chunk_size: w, slots of a chunk.
    """

    def __init__(self, query_groups: Sequence[Tensor], key_groups: Sequence[Tensor], chunk_size: int) -> None:
        length = shape(query_groups[0])[-1]
        size = min(chunk_size, length) if isinstance(length, int) else chunk_size
        self._queries = [Chunks.of(groups, size) for groups in query_groups]
        shared = key_groups is query_groups
        self._keys = self._queries if shared else [Chunks.of(groups, size) for groups in key_groups]
        self._groups, self._size = (query_groups, key_groups), size

    def grid(self, number: int) -> ChunkGrid:
        """Returns the `ChunkGrid` of a round."""
        return ChunkGrid(self._queries[number], KeyChunks(self._keys[number], self._keys[number - 1].last()))

    def numbers(self, number: int) -> Numbers:
        """Returns what the rule of a round reads of queries and keys, a pair of dictionaries of int32 (B, N, T).

        "chunk" is the number of a token's chunk, "is_last" whether, in the round before, it is in the last chunk that
        has tokens, "exists" whether it is no padding.
        """
        before = self._keys[number - 1]
        exists = [ops.cast(groups[number] != NO_GROUP, "int32") for groups in self._groups]
        count = ops.sum(exists[1], axis=-1, keepdims=True)
        is_last = before.inverse // self._size == ops.maximum(count - 1, 0) // self._size
        return (
            {"chunk": self._queries[number].inverse // self._size, "exists": exists[0]},
            {
                "chunk": self._keys[number].inverse // self._size,
                "exists": exists[1],
                "is_last": ops.cast(is_last, "int32"),
            },
        )
