"""Token information for mask rules, and content-based selection of the groups, keys or blocks that queries attend to.

A content-based pattern creates a `Selector` (`Pattern.make_selector`), which the layer stores with the weights of the
selector. `select` selects for a whole sequence. With a KV cache, `add` adds new tokens to the state of the selector,
which is part of the cache, and `select_new` selects for their queries. The result is a `Selection`, with the features
for the mask rule of the pattern.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, cast

import keras
from keras import ops

from tf_sparse_attention.ops.gather import rewrite_slots, ring_positions, take_numbers, take_rows
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import Members
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import DType, Size, Tensor

MANY_TOKENS = 16  # new tokens in decoding. With fewer tokens, each query gathers the slots that it reads.


@dataclasses.dataclass(frozen=True)
class TokenInfo:
    """Queries or keys as arguments of a mask rule: arrays of positions and features.

    Arrays of queries and of keys broadcast against each other. Constants are NumPy arrays, other arrays
    are tensors. The operators of Python (`-`, `//`, `%`, `<`, `==`, `abs`) work on both.

    Attributes:
        position: int, positions in the sequence. Keys of a segment memory have negative positions. If the pattern has a
            `period`, positions may be shifted by multiples of it.
        features: int, further features by name, such as "group" and "rank" of content-based patterns. Each feature is
            also an attribute: `query.group`.
        document_start: function that computes `start`. The attribute is None without packed documents.
    """

    position: Tensor
    features: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    document_start: Callable[[], Tensor] | None = None

    @property
    def start(self) -> Tensor:
        """The position at which the document of the token begins, int; 0 without packed documents."""
        return 0 if self.document_start is None else self.document_start()

    def __getattr__(self, name: str) -> Tensor:
        features = self.__dict__.get("features", {})
        if name not in features:
            raise AttributeError(f"Token information has no feature {name!r}, only {sorted(features)}.")
        return features[name]


SelectedKeys: TypeAlias = Tensor | Members  # groups int32 (B, m, S) of keys, or the keys of each cluster


class TokenFeatures(NamedTuple):
    """Token features for a mask rule, by name.

    Attributes:
        query: int32 (B or 1, n, T), of queries.
        key: int32 (B or 1, m, S), of keys.
    """

    query: Mapping[str, Tensor]
    key: Mapping[str, Tensor]

    def features(self) -> Self:
        """Return self, so that `TokenFeatures` can replace a `Selection`."""
        return self


class Selection:
    """Result of a `Selector` for the tokens of a call."""

    def features(self) -> TokenFeatures:
        """Return the `TokenFeatures` for the mask rule, in sequence order."""
        raise NotImplementedError(f"{type(self).__name__} must define `features`.")


class SelectionInputs(NamedTuple):
    """Heads that a selector compares.

    Attributes:
        query: (B, n, T, H), before scale and rotation by positions.
        key: (B, m, S, H), before rotation; `query` itself if queries are used as keys.
        rotated_query: (B, n, T, H), scaled and rotated as in the scores.
        rotated_key: (B, m, S, H), scaled and rotated as in the scores.
        masks: a `TokenMasks`.
        training: whether weights of the selector are updated.
    """

    query: Tensor
    key: Tensor
    rotated_query: Tensor
    rotated_key: Tensor
    masks: TokenMasks = TokenMasks()
    training: bool = False

    def sides(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return the distinct heads of tokens, queries and keys or both in one, each with its mask (B, T) or None."""
        if self.key is self.query:  # a mask of keys masks the token
            return [(self.query, self.masks.key_mask)]
        return [(self.query, self.masks.query_mask), (self.key, self.masks.key_mask)]


class NewTokens(NamedTuple):
    """New tokens that extend the sequences of a KV cache.

    Attributes:
        positions: int32 (B, q), consecutive positions in each row. Undefined in rows without a token.
        exists: bool (B, q), True for the leading tokens of each row that are added to the cache.
        counts: int32 (B,), number of tokens that are added per row.
    """

    positions: Tensor
    exists: Tensor
    counts: Tensor

    @property
    def start(self) -> Tensor:
        """The position of the first new token of each row, int32 (B,)."""
        return self.positions[:, 0]

    @property
    def length(self) -> int | None:
        """q, None if unknown."""
        return self.positions.shape[1]

    def first_token(self) -> Self:
        """Return the first new token of each row."""
        return self._replace(
            positions=self.positions[:, :1], exists=self.exists[:, :1], counts=ops.minimum(self.counts, 1)
        )

    def shift(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return `x` of the token before each new token, and `x` of the last token of each row.

        Args:
            x: array of the new tokens, (B, m, q) or (B, m, q, H).
            last: `x` of the token before the new tokens, (B, m, 1) or (B, m, 1, H).
        """
        is_number, x = len(x.shape) == 3, ops.cast(x, last.dtype)
        if self.length == 1:
            exists = self.exists[:, None] if is_number else self.exists[:, None, :, None]
            return last, ops.where(exists, x, last)
        x = ops.concatenate([last, x], axis=2)
        at = ops.broadcast_to(self.counts[:, None, None], (*shape(x)[:2], 1))
        return x[:, :, :-1], (take_numbers if is_number else take_rows)(x, at)

    def ring_numbers(self, num_slots: Size) -> Tensor:
        """Return the number of the new token for each slot of a ring buffer, int32 (B, S).

        Position p is in slot p mod S. If the number is negative or at least `counts`, the slot keeps its content.
        """
        return ring_positions(num_slots, self.start + self.counts - 1) - self.start[:, None]

    def write_ring(self, ring: Tensor, x: Tensor) -> Tensor:
        """Write the vectors (B, m, q, H) of the new tokens to a ring buffer (B, m, S, H)."""
        number = self.ring_numbers(shape(ring)[2])[:, None]
        is_new = ops.logical_and(number >= 0, number < self.counts[:, None, None])
        return rewrite_slots(ring, x, number, is_new)


class Selector:
    """Base class of selectors. A selector that does not decode with a KV cache defines only `select`.

    Attributes:
        key_features: names of the key features to store in the KV cache.
    """

    key_features: tuple[str, ...] = ()

    def select(self, inputs: SelectionInputs) -> Selection:
        """Select groups, keys or blocks for all queries of a call."""
        raise NotImplementedError(f"{type(self).__name__} must define `select`.")

    def init(self, entry: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the initial state, a dictionary of tensors. `entry` is empty, with "key" and "value" (B, m, S, H)."""
        return {}

    def add(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Add new tokens to the state.

        Args:
            state: result of `init` or of this method.
            inputs: heads of the new tokens.
            tokens: the `NewTokens`.

        Returns:
            Pair of the changed state and the key features, int32 (B, m, q), each as a dictionary.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `add`.")

    def complete(self, entry: Mapping[str, Tensor], tokens: NewTokens) -> dict[str, Tensor]:
        """Return the changed state after new tokens were added and written to the cache entry.

        For states that depend on cached keys or values: programs that read the entry before it is written copy it.
        """
        return {}

    def select_new(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens, added: Mapping[str, Tensor]
    ) -> Selection | TokenFeatures:
        """Select groups, keys or blocks for the queries of new tokens.

        Args:
            state: the state after `add`, and after `complete` if the cache never overwrites tokens.
            inputs: heads of the new tokens.
            tokens: the `NewTokens`.
            added: the key features that `add` returned.

        Returns:
            A `Selection` whose features of queries are int32 (B, n, q), or its `TokenFeatures`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `select_new`.")

    def rewind(self, entry: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        """Return the changed state after the removal of all tokens from position `lengths` (B,) on.

        `entry` is the cache entry before the removal, with keys, positions and state.
        """
        return {}

    def select_keys(self, key: Tensor, mask: Tensor | None) -> SelectedKeys:
        """Select among keys (B, m, S, H) for a cross-attention cache. `mask` (B, S) is False for padding."""
        raise NotImplementedError(f"{type(self).__name__} must define `select_keys`.")

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Assign tokens (B, n, T, H) at positions (B or 1, T) to groups, int32 (B or 1, n, T)."""
        raise NotImplementedError(f"{type(self).__name__} must define `assign`.")


class GivenSelection(Selector):
    """A selection that is computed elsewhere.

    Args:
        selection: the `Selection` of a call, or of new tokens.
    """

    def __init__(self, selection: Selection | TokenFeatures) -> None:
        self._selection = selection

    def select(self, inputs: SelectionInputs) -> Selection:
        return cast(Selection, self._selection)

    def add(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {}

    def select_new(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens, added: Mapping[str, Tensor]
    ) -> Selection | TokenFeatures:
        return self._selection


class Grouper(Protocol):
    """Assigns tokens to groups. With a method `learn` it updates its weights in training."""

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Return the group of each token, int32 (B or 1, n, T) of heads (B, n, T, H) at positions (B or 1, T)."""


class CentroidGrouper(Grouper, Protocol):
    """Assigns tokens to the nearest centroid, and learns the centroids."""

    def scores(self, heads: Tensor) -> Tensor:
        """Return the score of each token (B, n, T, H) for each centroid, float (B, n, T, K)."""

    def learn(self, sides: Sequence[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Update the centroids by heads (B, n, T, H), their masks (B, T) or None, and their groups (B, n, T)."""


class NoWeights:
    """`SelectorWeights` of a call without a layer. Selectors that need weights raise a `ValueError`."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("`select` must be given for a pattern whose selector has weights. Received: select=None.")


class SelectorWeights(Protocol):
    """Creates the weights of a selector, as part of the layer that holds the pattern.

    Attributes:
        num_heads: heads of keys, each of which has weights.
        key_dim: H.
        seed: integer.
        dtype: dtype policy of the layer.
        normalizes: whether the heads must be layer-normalized before the comparison.
    """

    num_heads: int
    key_dim: int
    seed: int
    dtype: DType
    normalizes: bool

    def centroids(
        self, num_clusters: int, ema_decay: float, revive_after: int, commitment_loss: float
    ) -> CentroidGrouper:
        """Create the centroids of online k-means."""

    def directions(self, num_directions: int) -> keras.Variable:
        """Create random directions, float32 (n, H, num_directions), that are not trained."""
