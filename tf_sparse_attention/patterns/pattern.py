"""Base class of patterns: mask rule, arrangement, selector and KV cache; unions, and patterns per head."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.ops.masks import TokenMasks, merge, shared_document_starts
from tf_sparse_attention.ops.shapes import arange, repeat_key_heads, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, WholeSequence
from tf_sparse_attention.patterns.selection import Selection, Selector, SelectorWeights, TokenFeatures, TokenInfo
from tf_sparse_attention.types import Config, Size, Tensor


class Offset(NamedTuple):
    """Position of the first query and of the first key of a call that continues a sequence.

    Attributes:
        position: int32 (B,).
        multiple: integer; `position` is a multiple of it, so rules whose period divides it do not change.
    """

    position: Tensor
    multiple: int

    def changes(self, pattern: "Pattern") -> bool:
        """Return whether the mask rule of a pattern needs the offset."""
        return pattern.period is None or self.multiple % pattern.period != 0


class Call(NamedTuple):
    """Sizes and options of a call, from which a pattern makes an arrangement.

    Attributes:
        batch: B, an integer or a scalar tensor.
        query_length: T, an integer or a scalar tensor.
        key_length: S, an integer or a scalar tensor.
        causal: whether later keys are masked. Default False.
        lead: number of keys before the first query: the keys of the segment memory. -1: key j is at position j + 1, see
            `Successors`. The arrangement has the same `lead`. Default 0.
        starts: function that returns the position at which the document of each token begins, int32 (B, 1, T). Queries
            and keys have the same documents. None: no packed documents.
        group_size: number of query heads that share a key head, N / M. Default 1.
        offset: an `Offset`, if a mask rule depends on it. Default None: the first position is 0.
    """

    batch: Size
    query_length: Size
    key_length: Size
    causal: bool = False
    lead: int = 0
    starts: Callable[[], Tensor] | None = None
    group_size: int = 1
    offset: Offset | None = None

    @classmethod
    def from_inputs(cls, pattern: "Pattern", query: Tensor, key: Tensor, causal: bool, masks: TokenMasks) -> Self:
        """Create the `Call` of a pattern from queries (B, N, T, H) and keys (B, M, S, H).

        Raises:
            ValueError: if a part of the pattern is for causal self-attention only, and the call is not causal.
        """
        for part in primitives(pattern):
            if part.must_be_causal:
                check_causal(type(part).__name__, causal)
        (batch, _, query_length, _), key_length = shape(query), shape(key)[2]
        starts: Callable[[], Tensor] | None = None
        if masks.query_segments is not None:
            starts = functools.cache(lambda: shared_document_starts(masks))
        return cls(batch, query_length, key_length, causal, masks.num_memory, starts)


def check_causal(name: str, causal: bool) -> None:
    """Raise a `ValueError` unless a call is causal, for the pattern or layer `name` that requires it."""
    if not causal:
        raise ValueError(
            f"`use_causal_mask` must be True with {name}, which requires causal self-attention. "
            "Received: use_causal_mask=False."
        )


def rule_conditions(pattern: "Pattern", query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
    """Evaluate the mask rule of a pattern: a tuple of conditions, all of which must hold."""
    seen = pattern.visible(query, key)
    if seen is None:
        raise ValueError(f"`visible` of {type(pattern).__name__} must return a condition, or several. Received: None.")
    return seen if isinstance(seen, tuple) else (seen,)


def dense_rule(pattern: "Pattern", call: Call, features: TokenFeatures) -> Tensor:
    """Evaluate the mask rule of a pattern for all pairs, before masks: bool broadcastable to (B, n, T, S)."""
    queries, keys = arange(call.query_length), arange(call.key_length) - call.lead
    of_queries, of_keys = features
    heads = max((x.shape[1] for x in of_queries.values()), default=None)
    of_keys = {name: repeat_key_heads(x, heads)[..., None, :] for name, x in of_keys.items()}
    of_queries = {name: x[..., :, None] for name, x in of_queries.items()}
    starts: list[Callable[[], Tensor] | None] = [None, None]
    if call.starts is not None:
        begins = call.starts
        starts = [lambda: begins()[..., :, None], lambda: begins()[..., None, :]]
    query = TokenInfo(queries[:, None], of_queries, starts[0])
    key = TokenInfo(keys[None, :], of_keys, starts[1])
    past = key.position <= query.position if call.causal else None
    merged = merge(*rule_conditions(pattern, query, key), past)
    return np.ones((1, 1), bool) if merged is None else merged


class Pattern:
    """Base class of attention patterns: which keys each query attends to.

    A custom pattern is a frozen dataclass that derives from this class. It defines the mask rule (`visible`), the
    groups of queries and keys that cover the allowed pairs (`arrange`), and the KV cache (`cache`). The library applies
    causality, padding, packed documents, masks, position encodings and dropout to all patterns. `a | b` is the union of
    two patterns in one softmax, in which each key counts once.

    Attributes:
        period: the mask rule is unchanged if query and key both move by this number of positions. The period
            is 1 if the rule uses only distances, and the block size if the rule uses blocks. With a period, masks are
            constants. None (default): no period.
        reach: the largest distance of a key. The reach is the default of `max_distance` for position "relative", and
            the length of the segment memory if the pattern `takes_memory`. None: keys can be at any distance, and
            adaptive spans do not apply. Default 0.
        content_based: whether the pattern has a selector, which computes features for `visible`. Default False.
        takes_memory: whether keys of a segment memory may precede the sequence. Default False.
        must_be_causal: whether the pattern is for causal self-attention only. Default False.
        selects_alone: whether a union must not have another content-based pattern. Default False.
        can_be_causal: whether later keys can be masked. Default True.
        causal_selection: whether, under a causal mask, the keys of a query are independent of later tokens. Default
            True.

    Example:
        A dilated window of every second position; see `docs/adding_a_pattern.md`.

        >>> import dataclasses
        >>> @dataclasses.dataclass(frozen=True)
        ... class EverySecond(Pattern):
        ...     size: int
        ...     period = 1
        ...
        ...     def visible(self, query, key):
        ...         apart = key.position - query.position
        ...         return apart % 2 == 0, abs(apart) < self.size
        ...
        ...     def arrange(self, call, selection=None):
        ...         return Grid(call.query_length, call.key_length, self.size, 1, 0 if call.causal else 1)
        ...
        ...     def cache(self):
        ...         return Ring(self.size)
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=EverySecond(6))
        >>> seen = layer.attention_pattern(keras.random.normal((1, 9, 16)), use_causal_mask=True)
        >>> np.flatnonzero(seen[0, 0, 8]).tolist()
        [4, 6, 8]
    """

    must_be_causal = False
    selects_alone = False
    if TYPE_CHECKING:  # as properties, since a subclass may have each as a constant, a field or a property

        @property
        def period(self) -> int | None: ...
        @property
        def reach(self) -> int | None: ...
        @property
        def content_based(self) -> bool: ...
        @property
        def takes_memory(self) -> bool: ...
        @property
        def can_be_causal(self) -> bool: ...
        @property
        def causal_selection(self) -> bool: ...
    else:
        period = None
        reach = 0
        content_based = False
        takes_memory = False
        can_be_causal = True
        causal_selection = True

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor | tuple[Tensor, ...]:
        """Evaluate the mask rule, without the causal mask and other masks.

        Args:
            query: the `TokenInfo` of queries.
            key: the `TokenInfo` of keys.

        Returns:
            Bool, True for allowed pairs, or a tuple of conditions, all of which must hold. NumPy arrays or tensors
            that broadcast to all pairs.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `visible`.")

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        """Return the `Arrangement` of a call, whose groups cover all allowed pairs.

        Args:
            call: a `Call`.
            selection: the `Selection` of the pattern. None if it has none.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `arrange`.")

    def make_selector(self, weights: SelectorWeights) -> Selector:
        """Create the selector of a content-based pattern.

        Args:
            weights: a `SelectorWeights`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `make_selector`.")

    def cache(self) -> CachePolicy:
        """Return the `CachePolicy` for decoding.

        Raises:
            NotImplementedError: with the reason, if the pattern cannot decode with a KV cache.
        """
        raise NotImplementedError(f"{type(self).__name__} has no cache")

    def cross_cache(self) -> CrossCachePolicy:
        """Return the `CrossCachePolicy` for cross-attention decoding."""
        return WholeSequence()

    def __or__(self, other: "Pattern") -> "Union":
        return Union((self, other)) if isinstance(other, Pattern) else NotImplemented

    def get_config(self) -> Config:
        """Return the fields of the pattern, with nested patterns serialized."""
        return {
            field.name: keras.saving.serialize_keras_object(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Create a pattern from its config."""
        fields = {name: keras.saving.deserialize_keras_object(value) for name, value in config.items()}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def primitives(pattern: Pattern) -> "list[Pattern]":
    """Return the primitive patterns of a composition in order, or the pattern itself."""
    if not isinstance(pattern, Composition):
        return [pattern]
    return [primitive for part in pattern.parts for primitive in primitives(part)]


def cache_unsupported_reason(pattern: Pattern) -> str | None:
    """Return the reason why a pattern cannot decode with a KV cache, or None."""
    try:
        for primitive in primitives(pattern):
            primitive.cache()
    except NotImplementedError as error:
        return str(error)
    return None


class Composition(Pattern):
    """Base class of patterns that consist of `parts`."""

    if TYPE_CHECKING:

        @property
        def parts(self) -> Sequence[Pattern]: ...

    @property
    def reach(self) -> int | None:
        return max((part.reach for part in self.parts if part.reach is not None), default=None)

    @property
    def content_based(self) -> bool:
        return any(part.content_based for part in self.parts)

    @property
    def can_be_causal(self) -> bool:
        return all(part.can_be_causal for part in self.parts)

    @property
    def must_be_causal(self) -> bool:  # type: ignore[override]  # computed here
        return any(part.must_be_causal for part in self.parts)

    @property
    def causal_selection(self) -> bool:
        return all(part.causal_selection for part in self.parts)


class HeadComposition(Composition):
    """Base class of compositions that give heads different patterns."""

    def slices(self, num_heads: int) -> list[slice]:
        """Return the slice of the heads of each part."""
        raise NotImplementedError(f"{type(self).__name__} must define `slices`.")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Union(Composition):
    """Union of patterns in one softmax: `Window(256) | First(4)`.

    Each part is computed in a separate arrangement, and the results are merged exactly by their log-sum-exp. A part
    skips pairs that an earlier part allows, so that each pair counts once. The cost is the sum over the parts.

    Args:
        parts: two or more patterns.
        count_each: whether a pair counts once per part that allows it, as in the hash rounds of the Reformer. Default
            False.

    Raises:
        ValueError: if a part is not a pattern, gives heads different patterns (put the union inside `Heads`), or cannot
            be combined with another part.
    """

    parts: Sequence[Pattern]
    count_each: bool = False

    def __post_init__(self) -> None:
        checks.check_switch("count_each", self.count_each)
        if not isinstance(self.parts, (list, tuple)):
            raise ValueError(f"`parts` must be at least two patterns. Received: parts={self.parts!r}.")
        parts: list[Pattern] = []
        for part in self.parts:
            if not isinstance(part, Pattern):
                raise ValueError(f"`parts` must be patterns. Received: {part!r}.")
            if isinstance(part, HeadComposition):
                raise ValueError(
                    "`parts` of a union must have one pattern for all heads. Put the union into the heads instead: "
                    f"Heads([(2, Window(8) | First(1)), ...]). Received: {part!r}."
                )
            if isinstance(part, Union) and part.count_each == self.count_each:
                parts += part.parts
            else:
                parts.append(part)
        object.__setattr__(self, "parts", tuple(parts))
        if len(parts) < 2:
            raise ValueError(f"`parts` must be at least two patterns. Received: parts={self.parts!r}.")
        selecting = [part for part in parts if part.content_based]
        alone = [type(part).__name__ for part in selecting if part.selects_alone]
        if alone and len(selecting) > 1:
            raise ValueError(
                f"`parts` must have no other content-based pattern besides {alone[0]}. Put them into different heads: "
                f"Heads([(2, ...), ...]). Received: {', '.join(type(part).__name__ for part in selecting)}."
            )


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Heads(HeadComposition):
    """Patterns for consecutive groups of heads: `Heads([(6, Window(256)), (2, Stride(64))])`.

    Args:
        groups: pairs of a number of heads and their pattern, in the order of the heads.

    Raises:
        ValueError: if an entry of `groups` is not a pair of a positive integer and a pattern.
    """

    groups: Sequence[tuple[int, Pattern]]

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.groups, (list, tuple)) and len(self.groups) > 0
        if not is_sequence or not all(_is_group(group) for group in self.groups):
            raise ValueError(
                f"`groups` must be pairs of a positive number of heads and a pattern. Received: groups={self.groups!r}."
            )
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return tuple(pattern for _, pattern in self.groups)

    @property
    def num_heads(self) -> int:
        """N, the sum over all groups."""
        return sum(count for count, _ in self.groups)

    def slices(self, num_heads: int) -> list[slice]:
        """Return the slice of the heads of each part.

        Raises:
            ValueError: if `num_heads` is not the sum over all groups.
        """
        if num_heads != self.num_heads:
            raise ValueError(
                f"`num_heads` must be {self.num_heads}, the sum over `groups`. Received: num_heads={num_heads}."
            )
        ends = [sum(count for count, _ in self.groups[: i + 1]) for i in range(len(self.groups))]
        return [slice(end - count, end) for (count, _), end in zip(self.groups, ends, strict=True)]


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class InTurn(HeadComposition):
    """Alternating patterns: head h has pattern number h modulo the number of parts.

    Args:
        parts: at least two patterns. The number of parts must divide the number of heads.

    Raises:
        ValueError: if `parts` is not a sequence of at least two patterns.
    """

    parts: Sequence[Pattern]

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.parts, (list, tuple)) and len(self.parts) > 1
        if not is_sequence or not all(isinstance(part, Pattern) for part in self.parts):
            raise ValueError(f"`parts` must be at least two patterns. Received: parts={self.parts!r}.")
        object.__setattr__(self, "parts", tuple(self.parts))

    def slices(self, num_heads: int) -> list[slice]:
        """Return the slice of the heads of each part.

        Raises:
            ValueError: if `num_heads` is not a multiple of the number of parts.
        """
        if num_heads % len(self.parts):
            raise ValueError(
                f"`num_heads` must be a multiple of {len(self.parts)}, the number of `parts`. "
                f"Received: num_heads={num_heads}."
            )
        return [slice(start, num_heads, len(self.parts)) for start in range(len(self.parts))]


def _is_group(group):
    if not isinstance(group, (list, tuple)) or len(group) != 2:
        return False
    count, pattern = group
    return isinstance(count, int) and not isinstance(count, bool) and count > 0 and isinstance(pattern, Pattern)
