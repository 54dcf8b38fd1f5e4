"""LSH attention: hash buckets, causal by construction or in chunks as published."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self, cast

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops import hashing
from tf_sparse_attention.ops.gather import (
    NO_GROUP,
    permute_rows,
    stable_order,
    take_member_numbers,
    take_numbers,
    take_rows,
)
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import join, shape, slice_axis, split
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupBand, GroupSelector, check_sizes
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, SelectionInputs, Selector, SelectorWeights, TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
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

    def make_selector(self, weights: SelectorWeights) -> Selector:
        axes = HashAxes(weights.directions(self.num_buckets // 2))
        return GroupSelector(axes, self.num_groups, weights.num_heads, weights.normalizes)


@dataclasses.dataclass(frozen=True)
class HashAxes:
    """The hash bucket of each token, a `Grouper`: the nearest of some axes and their opposites.

    Args:
        axes: variable (n, H, K / 2), or (R, n, H, K / 2) of all rounds.
        round: number of the round; None if the variable has no axis of rounds.
    """

    axes: keras.Variable
    round: int | None = None

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Return the bucket of each token, int32 (B, n, T), see `Grouper`."""
        axes = ops.convert_to_tensor(self.axes)
        axes = axes[None] if self.round is None else axes[self.round : self.round + 1]
        return hashing.lsh_buckets(heads, axes)[0]


@dataclasses.dataclass(frozen=True)
class HashedChunk(Pattern):
    """The query's chunk of the tokens sorted by bucket, and the chunk before; never causal (Kitaev et al. 2020).

    Chunk 0 of a round looks back to the last chunk of the round before, that of round 0 to the last of all. Which keys
    share a chunk depends on the whole sequence. The selection is a `ChunkSelection`.

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

    content_based = True
    causal_selection = False

    @property
    def reach(self) -> int:
        return self.chunk_size - 1

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        back = query.chunk - key.chunk
        round_before = query.chunk + 1 - key.is_last == 0  # chunk 0 and the last one, which LiteRT has no `&` for
        return (back == 0) | (back == 1) | round_before, key.exists == 1, query.exists == 1

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return cast(ChunkSelection, selection).grid()

    def cache(self) -> CachePolicy:
        raise NotImplementedError("which keys share a chunk depends on later tokens")


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

    def exists(self) -> Tensor:
        """Return 1 for each token that exists and 0 for padding, int32 (B, N, T)."""
        groups = take_numbers(join(self.groups, -1, shape(self.order)[-1]), self.inverse)
        return ops.cast(groups != NO_GROUP, "int32")

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


@dataclasses.dataclass(frozen=True)
class ChunkSelection(Selection):
    """The chunk of each token in one round.

    Args:
        queries: `Chunks` of the queries.
        keys: `Chunks` of the keys; `queries` itself where queries are used as keys.
        before: `Chunks` of the keys in the round before, which chunk 0 looks back to.
    """

    queries: Chunks
    keys: Chunks
    before: Chunks

    @classmethod
    def of(cls, query_groups: Sequence[Tensor], key_groups: Sequence[Tensor], number: int, chunk_size: int) -> Self:
        """Return the selection of a round.

        Args:
            query_groups: for each round the groups of the queries, int32 (B, N, T), see `ops.gather.groups_of`.
            key_groups: for each round those of the keys; the same list where queries are used as keys.
            number: number of the round. Other rounds than this one and the one before are not used.
            chunk_size: w, tokens of a chunk.
        """
        length = shape(query_groups[number])[-1]
        size = min(chunk_size, length) if isinstance(length, int) else chunk_size
        queries = Chunks.of(query_groups[number], size)
        keys = queries if key_groups is query_groups else Chunks.of(key_groups[number], size)
        return cls(queries, keys, keys if len(key_groups) == 1 else Chunks.of(key_groups[number - 1], size))

    def grid(self) -> ChunkGrid:
        """Return the `ChunkGrid` of the round."""
        return ChunkGrid(self.queries, KeyChunks(self.keys, self.before.last()))

    def features(self) -> TokenFeatures:
        """Return the features of the mask rule.

        "chunk" is the number of the token's chunk, "exists" is 0 for padding, and "is_last" is 1 where a key was in the
        last chunk with tokens in the round before.
        """
        count = ops.sum(self.keys.exists(), axis=-1, keepdims=True)
        size = shape(self.keys.positions)[-1]
        is_last = self.before.inverse // size == ops.maximum(count - 1, 0) // size
        of_keys = {"chunk": self.keys.inverse // size, "exists": self.keys.exists()}
        return TokenFeatures(
            {"chunk": self.queries.inverse // size, "exists": self.queries.exists()},
            {**of_keys, "is_last": ops.cast(is_last, "int32")},
        )


class ChunkSelector(Selector):
    """Selects the chunk of each token in one round.

    Args:
        rounds: the `GroupSelector` of each round.
        number: number of the round.
        chunk_size: w, tokens of a chunk.
    """

    def __init__(self, rounds: Sequence[GroupSelector], number: int, chunk_size: int) -> None:
        self._rounds, self._number, self._chunk_size = rounds, number, chunk_size

    def select(self, inputs: SelectionInputs) -> ChunkSelection:
        # Of this round and the one before, which is the last one for round 0.
        used = self._rounds[-1:] if len(self._rounds) == 1 else [self._rounds[i + self._number] for i in (-1, 0)]
        groups = [selector.select(inputs) for selector in used]
        queries = [each.query for each in groups]
        keys = queries if inputs.key is inputs.query else [each.key for each in groups]
        return ChunkSelection.of(queries, keys, len(groups) - 1, self._chunk_size)
