"""KV-cache policies: which positions the slots of a cache hold."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_slots
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import are_known, argmax_last_axis, max_over, min_if_known, shape
from tf_sparse_attention.patterns.selection import NewTokens, SelectedKeys, TokenInfo
from tf_sparse_attention.types import DType, Size, Tensor

if TYPE_CHECKING:
    from tf_sparse_attention.patterns.arrangement import Arrangement

# The position of an empty slot, less than any position of a token. Caches store positions minus this number, so that an
# empty cache is all zeros: some export formats initialize state with zeros.
EMPTY = -(2**30)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows (..., H) to int8 with a scale per row, float32 (...)."""
    x = ops.cast(x, "float32")
    scale = max_over(ops.abs(x), axis=-1) / 127
    return ops.cast(ops.round(x / ops.where(scale > 0, scale, 1)[..., None]), "int8"), scale


def dequantize_rows(rows: Tensor, scale: Tensor | None, dtype: DType) -> Tensor:
    """Return rows (..., H) of a cache in a dtype, multiplied by their `scale` (...) if they are quantized."""
    return ops.cast(rows if scale is None else ops.cast(rows, "float32") * scale[..., None], dtype)


def find_position(positions: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slot, among slots with `positions` (B, n, S), that holds a position (B, 1, 1), and whether it exists.

    Both results have shape (B, n, 1).
    """
    is_found = positions == position
    return argmax_last_axis(ops.cast(is_found, "float32"))[..., None], ops.any(is_found, axis=-1, keepdims=True)


class Buckets(NamedTuple):
    """The slots that queries read, in buckets of consecutive slots. Bucket g begins at slot g * size.

    Attributes:
        indices: int32 (B, 1 or n, q, R), distinct buckets of each query; a negative value means no bucket.
        size: slots per bucket.
    """

    indices: Tensor
    size: Size


class CachePolicy:
    """Base class of KV-cache policies. By default, slot s holds position s.

    In shapes, B is the number of rows, S the number of slots, q the number of new tokens, and n the number of heads:
    key heads, or query heads in `buckets`. A result with 1 instead of n is the same for all heads.

    Attributes:
        is_bounded: whether the number of slots is bounded for any sequence length. Default False.
        shares_reads: whether query heads that share a key head read the same slots, which are then read once. Default
            False.
        is_exact: whether the buckets that a query reads hold only keys that the pattern allows, up to its position.
            Default False.
        num_visible: for policies that reuse slots, the number of last tokens that a query can see. Default None: the
            cache never overwrites a token.
    """

    is_bounded = False
    if TYPE_CHECKING:  # as a property, since a subclass may have a constant or a property

        @property
        def num_visible(self) -> int | None: ...
    else:
        num_visible = None
    shares_reads = False
    is_exact = False

    def num_slots(self, max_length: Size) -> Size:
        """Return the number of slots for sequences of `max_length` tokens: an integer, or a scalar tensor."""
        raise NotImplementedError(f"{type(self).__name__} must define `num_slots`.")

    def with_spare(self, count: int) -> "CachePolicy":
        """Return a policy that keeps `count` more tokens; see `spare`.

        A policy that reuses slots must override this method.
        """
        return self

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        """Return whether a cache can hold `length` positions, an integer or int32 (B,). True if sizes are unknown."""
        return self.num_slots(length) <= num_slots if are_known(length, num_slots) else True

    def capacity(self, num_slots: Size) -> Size:
        """Return the number of consecutive tokens that a cache holds before it overwrites one, if it reuses slots."""
        return num_slots

    def spare(self, num_slots: Size) -> int | None:
        """Return the number of cached tokens that the next query cannot see.

        This many tokens plus one can be written before a query reads the cache. None: the cache never overwrites a
        token.
        """
        capacity = self.capacity(num_slots)
        if self.num_visible is None or not are_known(capacity) or capacity < self.num_visible:
            return None
        return capacity - self.num_visible

    def slot_positions(self, num_slots: Size) -> Tensor:
        """Return the position of each slot, int32 (S,), for a policy that never reuses slots."""
        return ops.arange(num_slots, dtype="int32")

    def slot_tokens(self, tokens: TokenInfo, new: NewTokens, num_slots: Size) -> Tensor:
        """Return the number of the new token for each slot, int32 (B, 1 or n, S).

        If the number is negative or at least `new.counts`, the slot keeps its content.

        Args:
            tokens: the `TokenInfo` of the new tokens, int32 (B, 1 or n, q).
            new: the `NewTokens`.
            num_slots: S.
        """
        return (self.slot_positions(num_slots) - new.start[:, None])[:, None]

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        """Return the slot of each new token, int32 (B, 1 or n, q), and a bool that is True if the token is stored.

        None instead of the bool: always store.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `slot`.")

    def buckets(self, query: TokenInfo, num_slots: Size, selection: Any = None) -> Buckets | None:
        """Return the `Buckets` that queries read. None: all slots.

        Args:
            query: `TokenInfo` of the queries, (B, 1 or n, q).
            num_slots: S.
            selection: result of `Selector.select_new` for the queries.
        """
        return None

    def extra_slots(self, entry: Mapping[str, Tensor]) -> Tensor | None:
        """Return the slots whose content follows the last slot in buckets, int32 (B, n, L). None: there are none."""
        return None

    def estimates(
        self, entry: Mapping[str, Tensor], selection: Any, positions: Tensor
    ) -> "list[tuple[Arrangement, Tensor, Tensor]]":
        """Return arrangements of new queries with further keys and values, such as means of keys. Default: none.

        Args:
            entry: the cache entry.
            selection: result of `Selector.select_new`.
            positions: int32 (B, q), the position of each query.

        Returns:
            For each arrangement also its keys (B, n, G, H) and values (B, n, G, Hv), or both in groups.
        """
        return []


@dataclasses.dataclass(frozen=True)
class Ring(CachePolicy):
    """Ring buffer of the last `size` positions: position p is in slot p mod the number of slots.

    Args:
        size: positions per row.

    Raises:
        ValueError: if `size` is not a positive integer.
    """

    size: int
    is_bounded = True

    def __post_init__(self) -> None:
        checks.check_count("size", self.size)

    @property
    def num_visible(self) -> int | None:
        return self.size

    def num_slots(self, max_length: Size) -> Size:
        return min_if_known(self.size, max_length)

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        return is_full_size(self.size, num_slots) or length <= num_slots

    def with_spare(self, count: int) -> CachePolicy:
        return dataclasses.replace(self, size=self.size + count)

    def slot_tokens(self, tokens: TokenInfo, new: NewTokens, num_slots: Size) -> Tensor:
        return new.ring_numbers(num_slots)[:, None]

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return token.position % num_slots, None


@dataclasses.dataclass(frozen=True)
class Everything(CachePolicy):
    """Cache policy that keeps all positions: position p is in slot p."""

    def num_slots(self, max_length: Size) -> Size:
        return max_length

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        return length <= num_slots

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return token.position, None


def is_full_size(size: Size, num_slots: Size) -> bool:
    """Return whether a cache is known to have all `size` slots of a bounded policy."""
    return isinstance(num_slots, int) and num_slots >= size


class ReadKeys(NamedTuple):
    """Keys that q queries read from a cross-attention cache, in G groups: one group of all queries, or one group per
    query.

    Attributes:
        key: (B, n, G, s, H), rotated by positions.
        value: (B, n, G, s, Hv).
        positions: int32 (1 or B, 1 or n, G, s), arbitrary in empty slots.
        exists: bool, shape of `positions`.
        features: further features of the keys by name, int32, broadcastable to (B, n, G, s).
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    exists: Tensor
    features: Mapping[str, Tensor] = {}


class CrossCachePolicy:
    """Base class of cache policies for the keys of another sequence. By default all keys are stored in order.

    Attributes:
        names: names of the key features that the mask rule reads, which an entry has as int32 (B, n, S).
    """

    names: tuple[str, ...] = ()

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: SelectedKeys | None) -> dict[str, Tensor]:
        """Create the cache entry of a sequence.

        Args:
            key: (B, n, S, H), rotated by positions.
            value: (B, n, S, Hv).
            mask: bool (B, S), False for masked keys; or None.
            groups: result of `Selector.select_keys` for content-based patterns: groups int32 (B, n, S), or `Members`;
                else None.
        """
        entry = {"key": key, "value": value}
        return entry if mask is None else {**entry, "mask": mask[:, None]}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, positions: Tensor) -> dict[str, Tensor]:
        """Return the features of queries at `positions` (B, q) by name, int32 (B, n, q).

        `entry` is the cache entry, and `group` int32 (B, n, q) or None is the result of `Selector.assign`.
        """
        return {}

    def read(self, entry: Mapping[str, Tensor], query: TokenInfo) -> ReadKeys:
        """Return the `ReadKeys` of queries, given their `TokenInfo` (B, 1 or n, q)."""
        raise NotImplementedError(f"{type(self).__name__} must define `read`.")


@dataclasses.dataclass(frozen=True)
class WholeSequence(CrossCachePolicy):
    """All keys of the sequence."""

    def read(self, entry: Mapping[str, Tensor], query: TokenInfo) -> ReadKeys:
        positions = ops.arange(shape(entry["key"])[2], dtype="int32")[None, None, None]
        mask, exists = entry.get("mask"), ops.ones((1, 1, 1, 1), "bool")
        exists = merge(exists, None if mask is None else mask[:, :, None])
        return ReadKeys(entry["key"][:, :, None], entry["value"][:, :, None], positions, exists)


@dataclasses.dataclass(frozen=True)
class KeyRange(WholeSequence):
    """`size` consecutive positions. `first` maps the position of the query to the first of these positions."""

    first: Callable[[Tensor], Tensor]
    size: int

    def read(self, entry: Mapping[str, Tensor], query: TokenInfo) -> ReadKeys:
        length = shape(entry["key"])[2]
        if isinstance(length, int) and length <= self.size:
            return super().read(entry, query)
        positions = self.first(query.position[..., None]) + ops.arange(self.size, dtype="int32")
        exists, mask = ops.logical_and(positions >= 0, positions < length), entry.get("mask")
        if mask is not None:
            exists = ops.logical_and(exists, take_slots(mask, positions))
        key, value = (take_slots(entry[name], positions) for name in ("key", "value"))
        return ReadKeys(key, value, positions, exists)
