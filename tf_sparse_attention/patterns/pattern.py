"""Patterns: which keys a query attends to, how to arrange them, and what a KV cache keeps."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.ops.blocks import arange, shape
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.masks import TokenMasks, merge, query_and_key_starts
from tf_sparse_attention.ops.members import Members
from tf_sparse_attention.patterns.arrangement import Arrangement, Numbers
from tf_sparse_attention.patterns.caches import CachePolicy, CrossCachePolicy, WholeSequence
from tf_sparse_attention.patterns.token_info import Place
from tf_sparse_attention.types import Config, Size, Tensor

# What is known of tokens beside their positions: the `Numbers` of their groups; in their place some patterns take an
# `ChunkedRounds`, an `GlobalTokens`, an `ChosenKeys` or a pair of
# `ops.members.Members`. None of a pattern that goes by positions.
Known: TypeAlias = Any


class Call(NamedTuple):
    """What an arrangement has to know of a call.

    Attributes:
        batch: B, an integer or a scalar tensor; so are the two lengths.
        query_length: T.
        key_length: S.
        causal: whether later keys are hidden.
        lead: keys before the position of the first query, an integer: those of earlier text; -1 where key j is at
            position j + 1, see `Successors`. An arrangement takes it over.
        starts: pair of int (B, 1, T) and (B, 1, S), where the document of each token begins; None: all at 0.
        group_size: heads beside each other that share keys and values, N / M, of the heads that are arranged.
    """

    batch: Size
    query_length: Size
    key_length: Size
    causal: bool = False
    lead: int = 0
    starts: tuple[Tensor, Tensor] | None = None
    group_size: int = 1

    @classmethod
    def of(cls, pattern: "Pattern", query: Tensor, key: Tensor, causal: bool, masks: TokenMasks) -> Self:
        """Returns the call of a pattern with queries (B, N, T, H), keys (B, M, S, H) and `TokenMasks`.

        Raises:
            ValueError: for more positions than the pattern's `max_length`, and for a call that is not causal of a
                pattern of which a part must be.
        """
        for leaf in pattern.leaves():
            if leaf.must_be_causal:
                check_causal(type(leaf).__name__, causal)
        (batch, _, query_length, _), key_length = shape(query), shape(key)[2]
        check_length(pattern, "query", query_length)
        check_length(pattern, "value", key_length - masks.num_memory)
        starts = query_and_key_starts(masks) if pattern.uses_starts else None
        return cls(batch, query_length, key_length, causal, masks.num_memory, starts)


def check_causal(name: str, causal: bool) -> None:
    """Raises a `ValueError` unless a call is causal of a pattern or layer, called `name`, for such calls alone."""
    if not causal:
        raise ValueError(
            f"`use_causal_mask` must be True with {name}, which is for causal self-attention alone. "
            "Received: use_causal_mask=False."
        )


def check_length(pattern: "Pattern", name: str, length: Size) -> None:
    """Raises a `ValueError` if a number of positions, as far as it is known, is more than a pattern takes.

    Args:
        pattern: a `Pattern`.
        name: what has so many positions, as the message names it.
        length: an integer; a scalar tensor is not checked.
    """
    if pattern.max_length is not None and isinstance(length, int) and length > pattern.max_length:
        raise ValueError(
            f"`{name}` must be of at most {pattern.max_length} positions, as many as the pattern takes. "
            f"Received: {length} positions, {pattern}."
        )


def rule_conditions(pattern: "Pattern", query: Place, key: Place) -> tuple[Tensor, ...]:
    """Returns what `visible` of a pattern says of some places, a tuple of conditions all of which must hold."""
    seen = pattern.visible(query, key)
    if seen is None:
        raise ValueError(f"`visible` of {type(pattern).__name__} must return a condition, or several. Received: None.")
    return seen if isinstance(seen, tuple) else (seen,)


def dense_rule(pattern: "Pattern", call: Call, features: Numbers | None) -> Tensor:
    """Evaluate the mask rule of a pattern for all pairs, before masks: bool broadcastable to (B, n, T, S).

    Args:
        pattern: a `Pattern`.
        call: a `Call`.
        features: of queries and of keys, int (B or 1, n, T) and (B or 1, m, S) by name; or None.
    """
    of_queries, of_keys = ({}, {}) if features is None else features
    queries, keys = arange(call.query_length), arange(call.key_length) - call.lead
    starts = (0, 0)
    if call.starts is not None and pattern.uses_starts:
        starts = call.starts[0][..., :, None], call.starts[1][..., None, :]
    heads = max((x.shape[1] for x in of_queries.values()), default=None)
    of_keys = {name: repeat_key_heads(x, heads)[..., None, :] for name, x in of_keys.items()}
    query = Place(queries[:, None], starts[0], {name: x[..., :, None] for name, x in of_queries.items()})
    key = Place(keys[None, :], starts[1], of_keys)
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
        period: by how many positions a query and a key may be moved together without a change of the rule: 1 for a rule
            of distances, the block size for one of blocks. Masks of such rules are constants. None: by none.
        reach: so many distances `position="relative"` without `max_distance` tells apart; where the pattern
            `takes_memory`, no key is seen from further away. Default 0: the neighbours alone, no memory.
        dense_up_to: the longest sequence in which a query may see all earlier keys, whatever is selected; the audit
            asks for longer ones. Default: `reach` + 1.
        by_content: whether groups of tokens decide: `visible` reads `group` and `rank` of a place. See `GroupBand`.
        num_groups: how many groups there are; only patterns that sort tokens into groups have it.
        chooses_keys: whether each group chooses its keys among all, by `choose_keys`, rather than each key its group.
        queries_choose: whether each query chooses keys by itself, by `choose`; its choices are what is known of it.
        must_be_causal: whether it is for causal self-attention alone.
        in_span: whether an adaptive span ends what it shows; keys that are seen from everywhere are not.
        can_join: whether the pattern can be part of a union: whether it is one softmax for each query.
        takes_memory: whether keys of earlier text may come before the sequence.
        uses_starts: whether `visible` reads `start` of a place.
        can_be_causal: whether later keys can be hidden at all.
        causal_selection: whether, under a causal mask, which keys a query sees is independent of later tokens.
        max_length: the most positions that a sequence may have; None: any number.
        parts: the patterns that a composition is made of.

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

    in_span = True
    can_join = True
    chooses_keys = False
    queries_choose = False
    must_be_causal = False
    if TYPE_CHECKING:  # as properties, since a subclass may have each as a constant, a field or a property

        @property
        def period(self) -> int | None: ...
        @property
        def reach(self) -> int: ...
        @property
        def by_content(self) -> bool: ...
        @property
        def num_groups(self) -> int: ...
        @property
        def takes_memory(self) -> bool: ...
        @property
        def uses_starts(self) -> bool: ...
        @property
        def can_be_causal(self) -> bool: ...
        @property
        def causal_selection(self) -> bool: ...
        @property
        def max_length(self) -> int | None: ...
        @property
        def parts(self) -> "Sequence[Pattern]": ...
    else:
        period = None
        reach = 0
        by_content = False
        takes_memory = False
        uses_starts = False
        can_be_causal = True
        causal_selection = True
        max_length = None
        parts = ()

    def visible(self, query: Place, key: Place) -> Tensor | tuple[Tensor, ...]:
        """Returns which keys a query sees, without a look at causality or masks.

        Args:
            query: the `Place` of queries.
            key: the `Place` of keys.

        Returns:
            Bool, or a tuple of bools all of which must hold, NumPy or tensors that broadcast to all pairs.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `visible`.")

    def arrange(self, call: Call, known: Known = None) -> Arrangement:
        """Returns how to bring side by side what can be visible.

        Args:
            call: a `Call`.
            known: pair of dictionaries of what is known of queries and keys, int (B or 1, N, T) and (B or 1, M, S), of
                a pattern that is `by_content` or where `queries_choose`, else None.

        Returns:
            An `Arrangement`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `arrange`.")

    def choose_keys(self, scores: Tensor, key_mask: Tensor | None) -> Members:
        """Returns which keys each group has, of a pattern that `chooses_keys`; what is known is then a `ChosenKeys`.

        Args:
            scores: float (B, n, S, K), of each key for each group.
            key_mask: bool (B, S), False for keys that are not there; or None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `choose_keys`.")

    def choose(self, query: Tensor, key: Tensor, masks: TokenMasks) -> Numbers:
        """Returns what queries (B, n, T, H) chose of turned keys (B, m, S, H): int32 (B, n, T) by name, and {}."""
        raise NotImplementedError(f"{type(self).__name__} must define `choose`.")

    def describe(self, known: Known) -> Numbers | None:
        """Returns what `visible` reads beside positions, for pairs that its own arrangement does not bring together.

        Args:
            known: as in `arrange`.
        """
        return known

    @property
    def dense_up_to(self) -> int:
        return max((part.dense_up_to for part in self.parts), default=self.reach + 1)

    def dense(self, call: Call, known: Known = None) -> Tensor:
        """Returns the dense twin of the rule, before masks: bool broadcastable to (B, n, T, S).

        A pattern with several softmaxes for a query has an axis more, (B, n, K, T, S).

        Args:
            call: a `Call`.
            known: as in `arrange`.
        """
        return dense_rule(self, call, self.describe(known))

    def cache(self) -> CachePolicy | None:
        """Returns the policy of `patterns.caches` that says which keys decoding keeps; None if it cannot decode."""
        return None

    def cross_cache(self) -> CrossCachePolicy:
        """Returns the policy of `patterns.caches` by which one query reads the keys of another sequence."""
        return WholeSequence()

    def cache_unsupported_reason(self) -> str | None:
        """Returns why the pattern cannot decode with a cache, as text; None if it can."""
        return None if self.cache() is not None else f"{type(self).__name__} has no cache"

    def leaves(self) -> "list[Pattern]":
        """Returns the patterns that are no compositions, in order."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]

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


class Composition(Pattern):
    """A pattern made of others: what it is follows from its `parts`."""

    @property
    def reach(self) -> int:
        return max(part.reach for part in self.parts)

    @property
    def by_content(self) -> bool:
        return any(part.by_content for part in self.parts)

    @property
    def uses_starts(self) -> bool:
        return any(part.uses_starts for part in self.parts)

    @property
    def can_be_causal(self) -> bool:
        return all(part.can_be_causal for part in self.parts)

    @property
    def must_be_causal(self) -> bool:  # type: ignore[override]  # computed, where others keep it
        return any(part.must_be_causal for part in self.parts)

    @property
    def causal_selection(self) -> bool:
        return all(part.causal_selection for part in self.parts)

    @property
    def max_length(self) -> int | None:
        return min((part.max_length for part in self.parts if part.max_length is not None), default=None)

    def cache_unsupported_reason(self) -> str | None:
        reasons = (part.cache_unsupported_reason() for part in self.parts)
        return next((reason for reason in reasons if reason is not None), None)


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
            if not part.can_join:
                raise ValueError(
                    f"`parts` of a union must each be one softmax for each query, which {type(part).__name__} is not. "
                    f"Give them heads of their own: tsa.patterns.Heads. Received: {part!r}."
                )
            flat = isinstance(part, Union) and part.count_each == self.count_each
            parts += part.parts if flat else [part]
        object.__setattr__(self, "parts", tuple(parts))
        if len(parts) < 2:
            raise ValueError(f"`parts` must be two patterns or more. Received: parts={self.parts!r}.")
