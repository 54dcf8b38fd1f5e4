"""LSH attention: keys of the query's hash bucket, or sorted chunks as published."""

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
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import join, repeat_key_heads, shape, slice_axis, split
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupBand, GroupSelection, GroupSelector
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import (
    Selection,
    SelectionInputs,
    Selector,
    SelectorWeights,
    TokenFeatures,
    TokenInfo,
)
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Hashed(GroupBand):
    """The last `bucket_size` keys of the query's hash bucket, up to its position.

    Without a causal mask, also the next `bucket_size` - 1 keys. Under a causal mask, results never depend on later
    tokens.

    The bucket of a vector is the nearest of num_buckets / 2 random directions and their opposites. Several rounds with
    different directions are a union: `Hashed(16, 64) | Hashed(16, 64, round=1)`. Source: Kitaev et al. 2020.

    Args:
        num_buckets: K, an even number.
        bucket_size: w, keys per side that a query attends to in its bucket, including the key at its own position.
        round: number that distinguishes equal patterns in a union, which have separate directions. Default 0.

    Raises:
        ValueError: if an argument is invalid.
    """

    num_buckets: int
    bucket_size: int
    round: int = 0

    def __post_init__(self) -> None:
        checks.check_count("num_buckets", self.num_buckets)
        checks.check_count("bucket_size", self.bucket_size)
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
    """Hash buckets, a `Grouper`: the nearest of K / 2 random directions and their opposites.

    Args:
        axes: the directions, a variable (n, H, K / 2), or (R, n, H, K / 2) for all rounds.
        round: number of the round; None if the variable has no axis of rounds.
    """

    axes: keras.Variable
    round: int | None = None

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Return the bucket of each token, int32 (B, n, T)."""
        axes = ops.convert_to_tensor(self.axes)
        axes = axes[None] if self.round is None else axes[self.round : self.round + 1]
        return hashing.lsh_buckets(heads, axes)[0]


@dataclasses.dataclass(frozen=True)
class HashedChunk(Pattern):
    """The query's chunk of the tokens sorted by bucket, and the previous chunk (Kitaev et al. 2020).

    Chunk 0 of a round looks back to the last chunk of the previous round; in round 0, to that of the last round. Not
    causal, because the members of a chunk depend on the whole sequence. The selection is a `ChunkSelection`.

    Any length works: the last chunk of a round may be incomplete. Padding is sorted after it and masked. A sequence of
    one chunk has each key twice, with the same result as once.

    Note: differs from the published code in padding, which is hashed there and moves tokens to other chunks, and in
    separate keys, which are not supported there. Separate keys are sorted by their buckets, and chunk c of the queries
    attends to the chunks c and c - 1 of the keys (as in Daras et al. 2020, "SMYRF").

    Args:
        num_buckets: K.
        chunk_size: w, tokens per chunk.
        round: as in `Hashed`. Default 0.
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
        offset = query.chunk - key.chunk
        round_before = query.chunk + 1 - key.is_last == 0  # chunk 0 and the last; LiteRT has no `&`
        return (offset == 0) | (offset == 1) | round_before, key.exists == 1, query.exists == 1

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        chunks = cast(ChunkSelection, selection)
        return ChunkGrid(chunks.queries, chunks.keys, chunks.before.last())

    def cache(self) -> CachePolicy:
        raise NotImplementedError("the members of a chunk depend on later tokens")


class Chunks(NamedTuple):
    """The tokens of one round, sorted by (group, position) and cut into G chunks of w slots. All int32.

    Attributes:
        order: (B, N, T), the token at each rank.
        inverse: (B, N, T), the rank of each token.
        positions: (B, N, G, w), the token in each slot; 0 beyond the end.
        groups: (B, N, G, w), the group of the token; 0 beyond the end.
    """

    order: Tensor
    inverse: Tensor
    positions: Tensor
    groups: Tensor

    @classmethod
    def from_groups(cls, groups: Tensor, size: Size) -> Self:
        """Sort tokens in groups (B, N, T), see `token_groups`, into chunks of `size` slots."""
        num_chunks = (shape(groups)[-1] + size - 1) // size
        order, inverse = stable_order(groups)
        numbers = [split(x, size, -1, num_chunks) for x in (order, take_numbers(groups, order))]
        return cls(order, inverse, *numbers)

    @property
    def present(self) -> Tensor:
        """Whether a slot holds a token that exists, bool (B, N, G, w)."""
        return ops.logical_and(self.groups > 0, self.groups != NO_GROUP)

    def exists(self) -> Tensor:
        """Return 1 for tokens and 0 for padding, int32 (B, N, T)."""
        groups = take_numbers(join(self.groups, -1, shape(self.order)[-1]), self.inverse)
        return ops.cast(groups != NO_GROUP, "int32")

    def arrange(self, x: Tensor) -> Tensor:
        """Arrange tokens in chunks: (B, N, T, H) to (B, N, G, w, H)."""
        num_chunks, size = shape(self.positions)[-2:]
        return split(permute_rows(x, self.order, self.inverse), size, -2, num_chunks)

    def restore(self, x: Tensor) -> Tensor:
        """Restore the order of the tokens: (B, N, G, w, H) to (B, N, T, H)."""
        return permute_rows(join(x, -2, shape(self.order)[-1]), self.inverse, self.order)

    def last(self) -> list[Tensor]:
        """Return positions and existence of the tokens in the last chunk that is not all padding, both (B, N, w).

        This is not always chunk G - 1, since a row must not depend on the length of its batch.
        """
        present = ops.cast(self.present, "int32")
        count = ops.sum(present, axis=(-2, -1))
        number = ops.maximum(count - 1, 0)[..., None] // shape(self.positions)[-1]
        return [take_rows(x, number)[:, :, 0] for x in (self.positions, present)]


def _look_back(own, last, axis):
    """Prepend the previous chunk to each chunk, `last` to the first. `axis` is the negative axis of chunks."""
    before = [ops.expand_dims(last, axis), slice_axis(own, axis, 0, shape(own)[axis] - 1)]
    return ops.concatenate([ops.concatenate(before, axis), own], axis + 1)


class ChunkGrid(Arrangement):
    """The chunks of queries of one round with the keys of the same and of the previous chunk, 2 w slots.

    Args:
        queries: `Chunks` of the queries.
        keys: `Chunks` of the keys.
        last: `Chunks.last` of the previous round, or in round 0 of the last round.
    """

    is_exact = True
    sorts_tokens = True

    def __init__(self, queries: Chunks, keys: Chunks, last: Sequence[Tensor]) -> None:
        self._queries, self._keys, self._last = queries, keys, last
        self.key_length = shape(keys.order)[-1]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            return take_member_numbers(ops.broadcast_to(x, shape(self._queries.order)), self._queries.positions)
        return self._queries.arrange(x)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            x = ops.broadcast_to(x, shape(self._keys.order))
            return self._repeat_heads(take_member_numbers(x, self._key_slots()))
        return _look_back(self._keys.arrange(x), take_rows(x, self._last[0]), -3)

    def _key_slots(self):
        return _look_back(self._keys.positions, self._last[0], -2)

    def _repeat_heads(self, x):
        return repeat_key_heads(x, self._queries.order.shape[1])

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._queries.restore(x)

    def query_positions(self) -> Tensor:
        return self._queries.positions

    def key_positions(self) -> Tensor:
        return self._repeat_heads(self._key_slots())

    def key_exists(self) -> Tensor:
        present = _look_back(ops.cast(self._keys.present, "int32"), self._last[1], -2) > 0
        return merge(self._queries.present[..., :, None], self._repeat_heads(present)[..., None, :])


@dataclasses.dataclass(frozen=True)
class ChunkSelection(Selection):
    """The chunk of each token in one round.

    Args:
        queries: `Chunks` of the queries.
        keys: `Chunks` of the keys; `queries` itself if queries are used as keys.
        before: `Chunks` of the keys in the previous round.
    """

    queries: Chunks
    keys: Chunks
    before: Chunks

    @classmethod
    def from_rounds(
        cls, query_groups: Sequence[Tensor], key_groups: Sequence[Tensor], number: int, chunk_size: int
    ) -> Self:
        """Return the selection of a round.

        Args:
            query_groups: for each round the groups of the queries, int32 (B, N, T), see `ops.gather.token_groups`.
            key_groups: for each round the groups of the keys; `query_groups` itself if queries are used as keys.
            number: number of the round. Only this round and the previous one are used.
            chunk_size: w, tokens per chunk.
        """
        length = shape(query_groups[number])[-1]
        size = min(chunk_size, length) if isinstance(length, int) else chunk_size
        queries = Chunks.from_groups(query_groups[number], size)
        keys = queries if key_groups is query_groups else Chunks.from_groups(key_groups[number], size)
        return cls(queries, keys, keys if len(key_groups) == 1 else Chunks.from_groups(key_groups[number - 1], size))

    def features(self) -> TokenFeatures:
        """Return "chunk", the chunk number, "exists", 0 for padding, and "is_last" of keys.

        "is_last" is 1 for keys in the last chunk of the previous round that is not all padding.
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
    """Selects the chunk of each token in one round, given the `GroupSelector` of each round."""

    def __init__(self, rounds: Sequence[GroupSelector], number: int, chunk_size: int) -> None:
        self._rounds, self._number, self._chunk_size = rounds, number, chunk_size

    def select(self, inputs: SelectionInputs) -> ChunkSelection:
        # Index -1 is the previous round; for round 0 it is the last one.
        used = self._rounds[-1:] if len(self._rounds) == 1 else [self._rounds[i + self._number] for i in (-1, 0)]
        groups = [cast(GroupSelection, selector.select(inputs)) for selector in used]
        queries = [each.query for each in groups]
        keys = queries if inputs.key is inputs.query else [each.key for each in groups]
        return ChunkSelection.from_rounds(queries, keys, len(groups) - 1, self._chunk_size)
