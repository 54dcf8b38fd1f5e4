"""Patterns: which keys a query attends to, how to arrange them, and what a KV cache keeps."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.masks import TokenMasks, merge, query_and_key_starts
from tf_sparse_attention.ops.shapes import arange, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, WholeSequence
from tf_sparse_attention.patterns.selection import Selection, Selector, SelectorWeights, TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Config, Size, Tensor


class Call(NamedTuple):
    """Sizes and options of a call, from which a pattern makes an arrangement.

    Attributes:
        batch: B, an integer or a scalar tensor.
        query_length: T, an integer or a scalar tensor.
        key_length: S, an integer or a scalar tensor.
        causal: whether later keys are masked. Default False.
        lead: number of keys before the first query, those of the segment memory; -1 if key j is at position j + 1, see
            `Successors`. The arrangement has the same `lead`. Default 0.
        starts: function that returns the position at which the document of each token begins, int (B, 1, T) of queries
            and (B, 1, S) of keys. None: no packed documents.
        group_size: number of query heads that share a key head, N / M. Default 1.
    """

    batch: Size
    query_length: Size
    key_length: Size
    causal: bool = False
    lead: int = 0
    starts: Callable[[], tuple[Tensor, Tensor]] | None = None
    group_size: int = 1

    @classmethod
    def of(cls, pattern: "Pattern", query: Tensor, key: Tensor, causal: bool, masks: TokenMasks) -> Self:
        """Return the call of a pattern with queries (B, N, T, H) and keys (B, M, S, H).

        Raises:
            ValueError: if a part of the pattern is for causal self-attention only, and the call is not causal.
        """
        for part in primitives(pattern):
            if part.must_be_causal:
                check_causal(type(part).__name__, causal)
        (batch, _, query_length, _), key_length = shape(query), shape(key)[2]
        starts: Any = None
        if masks.query_segments is not None:
            starts = functools.cache(lambda: query_and_key_starts(masks))
        return cls(batch, query_length, key_length, causal, masks.num_memory, starts)


def check_causal(name: str, causal: bool) -> None:
    """Raises a `ValueError` unless a call is causal of a pattern or layer, called `name`, for such calls alone."""
    if not causal:
        raise ValueError(
            f"`use_causal_mask` must be True with {name}, which is for causal self-attention alone. "
            "Received: use_causal_mask=False."
        )


def rule_conditions(pattern: "Pattern", query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
    """Returns what `visible` of a pattern says of some places, a tuple of conditions all of which must hold."""
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
        starts = [lambda: begins()[0][..., :, None], lambda: begins()[1][..., None, :]]
    query = TokenInfo(queries[:, None], of_queries, starts[0])
    key = TokenInfo(keys[None, :], of_keys, starts[1])
    past = key.position <= query.position if call.causal else None
    merged = merge(*rule_conditions(pattern, query, key), past)
    return np.ones((1, 1), bool) if merged is None else merged


class Pattern:
    """Which keys each query sees: a value, equal to another of the same class and fields.

    A pattern of your own is a frozen dataclass derived from this class. It says three things: the rule (`visible`), how
    to bring side by side what it allows (`arrange`) and what decoding keeps (`cache`). What concerns all patterns is
    not its business: causality, padding, packed documents, masks, positions, dropout. Patterns compose: `a | b` lets a
    query see in one softmax what either lets it see, each key once.

    Attributes:
        period: number of positions by which query and key can move together without a change of the rule: 1 for a rule
            of distances, the block size for a rule of blocks. Masks of such rules are constants. Default None.
        reach: the largest distance of a key, which is the default of `max_distance` for position "relative", and the
            length of the segment memory if the pattern `takes_memory`. None: keys at any distance, to which adaptive
            spans do not apply. Default 0.
        content_based: whether the pattern has a selector, whose features `visible` reads. Default False.
        takes_memory: whether keys of a segment memory may precede the sequence. Default False.
        must_be_causal: whether the pattern is for causal self-attention only. Default False.
        can_be_causal: whether later keys can be masked. Default True.
        causal_selection: whether, under a causal mask, the keys of a query are independent of later tokens. Default
            True.

    Example:
        A window that sees every second position; see `docs/adding_a_pattern.md`.

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
        ...     def arrange(self, call, known=None):
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
        """Returns which keys a query sees, without a look at causality or masks.

        Args:
            query: the `TokenInfo` of queries.
            key: the `TokenInfo` of keys.

        Returns:
            Bool, or a tuple of bools all of which must hold, NumPy or tensors that broadcast to all pairs.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `visible`.")

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        """Returns how to bring side by side what can be visible.

        Args:
            call: a `Call`.
            known: pair of dictionaries of what is known of queries and keys, int (B or 1, N, T) and (B or 1, M, S), of
                a pattern that is `content_based` or where `queries_choose`, else None.

        Returns:
            An `Arrangement`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `arrange`.")

    def make_selector(self, weights: SelectorWeights) -> Selector:
        """Create the selector of a content-based pattern.

        Args:
            weights: a `SelectorWeights`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `make_selector`.")

    def cache(self) -> CachePolicy:
        """Return the `CachePolicy` of decoding.

        Raises:
            NotImplementedError: with the reason, if the pattern cannot decode with a KV cache.
        """
        raise NotImplementedError(f"{type(self).__name__} has no cache")

    def cross_cache(self) -> CrossCachePolicy:
        """Return the policy of decoding with the keys of another sequence."""
        return WholeSequence()

    def __or__(self, other: "Pattern") -> "Union":
        return Union((self, other)) if isinstance(other, Pattern) else NotImplemented

    def get_config(self) -> Config:
        """Returns the fields of the pattern, nested ones serialised."""
        return {
            field.name: keras.saving.serialize_keras_object(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Returns the pattern of a config."""
        fields = {name: keras.saving.deserialize_keras_object(value) for name, value in config.items()}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def primitives(pattern: Pattern) -> "list[Pattern]":
    """Return the primitive patterns of a composition in order, or the pattern itself."""
    if not isinstance(pattern, Composition):
        return [pattern]
    return [primitive for part in pattern.parts for primitive in primitives(part)]


def cache_unsupported_reason(pattern: Pattern) -> str | None:
    """Return why a pattern cannot decode with a KV cache. None if it can."""
    try:
        for primitive in primitives(pattern):
            primitive.cache()
    except NotImplementedError as error:
        return str(error)
    return None


class Composition(Pattern):
    """A pattern of several `parts`, which determine its properties."""

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


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Union(Composition):
    """What any of its parts lets a query see, in one softmax: `Window(256) | First(4)`.

    The parts are computed each in its own arrangement and merged exactly by their log-sum-exp; a part leaves out what
    an earlier one shows, so that each pair of query and key counts once. The cost is that of the parts together.

    Args:
        parts: patterns, two or more, each one softmax for each query.
        count_each: whether a pair counts as often as parts show it, as in the rounds of the Reformer. Default False.

    Raises:
        ValueError: for something that is no pattern, heads side by side (put the union inside them), and a part whose
            queries take part in several softmaxes or share one.
    """

    parts: Sequence[Pattern]
    count_each: bool = False

    def __post_init__(self) -> None:
        checks.check_switch("count_each", self.count_each)
        if not isinstance(self.parts, (list, tuple)):
            raise ValueError(f"`parts` must be two patterns or more. Received: parts={self.parts!r}.")
        parts: list[Pattern] = []
        for part in self.parts:
            if not isinstance(part, Pattern):
                raise ValueError(f"`parts` must be patterns. Received: {part!r}.")
            if isinstance(part, Composition) and not isinstance(part, Union):
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
            raise ValueError(f"`parts` must be two patterns or more. Received: parts={self.parts!r}.")
