"""Attention under any pattern as a Keras layer."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, head_plans
from tf_sparse_attention.layers.attention.groupers import Grouper, HashAxes
from tf_sparse_attention.layers.parts.centroids import Centroids
from tf_sparse_attention.layers.parts.variables import drawn_seed, random_directions
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.positions import NoPosition, Relative
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster
from tf_sparse_attention.patterns.engine.plan import Leaf
from tf_sparse_attention.patterns.hashed import Hashed
from tf_sparse_attention.patterns.nearest import CentroidPattern
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SparseAttention(AttentionLayer):
    """Multi-head attention whose pattern is any composition of `tsa.patterns`.

    `pattern=Window(256) | First(4)` is a window with attention sinks, `Window(128) | Nearest(16, 64)` a window and the
    query's cluster in one softmax, `Heads([(6, Window(256)), (2, Stride(64))])` heads of two kinds. Softmax of
    q . k / sqrt(key_dim), as in `keras.layers.MultiHeadAttention`; a score for each pair of query and key, whichever
    part of a union shows it, and distances in tokens. The cost is that of the pattern's parts.

    Parts in which content decides (`Nearest`, `TopKeys`, `Hashed`) have centroids or hash axes of their own, found by
    LN(q) and LN(k) without scale; `Nearest` and `Hashed` cost a third to a fourth with `share_qk=True`.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        pattern: a `tsa.patterns.Pattern`, or its config as Keras serialises it.
        share_qk: whether queries serve as keys; then no key projection exists and `value` must be None. Default False.
        mask_self: whether a token sees itself only when no part of its pattern shows it another. None (default): where
            queries serve as keys, since a token would otherwise see little but itself.
        **kwargs: the other arguments of `AttentionLayer`. `position="relative"` has a table for the keys alone where
            content decides, about twice the cost of the layer. `seed` draws centroids and axes too.

    Raises:
        ValueError: for a wrong argument, and a pattern made for another number of heads.

    Example:
        >>> from tf_sparse_attention.patterns import First, Window
        >>> layer = SparseAttention(num_heads=4, key_dim=16, pattern=Window(128) | First(4))
        >>> tuple(layer(keras.random.normal((2, 1000, 64)), use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        pattern: Pattern | Config,
        *,
        share_qk: bool = False,
        mask_self: bool | None = None,
        normalize_queries_and_keys: bool = False,
        **kwargs: Any,
    ) -> None:
        checks.check_switch("share_qk", share_qk)
        self.share_qk = share_qk  # first, for the checks of heads
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_optional_switch("mask_self", mask_self)
        if isinstance(pattern, dict):
            pattern = keras.saving.deserialize_keras_object(pattern)
        checks.check_switch("normalize_queries_and_keys", normalize_queries_and_keys)
        self._pattern = _checked_pattern(pattern)
        head_plans(self)  # raises an error for another number of heads
        self.mask_self = mask_self
        self.normalize_queries_and_keys = normalize_queries_and_keys
        self.has_relative_values = not self.pattern.by_content
        if normalize_queries_and_keys and self.head_settings.attention_scale is None:
            self.score_scale = 1.0
        if self.pattern.by_content:
            self.seed = drawn_seed(self.seed)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self._groupers = self._make_groupers()

    def _make_groupers(self) -> list[Grouper | None]:
        """Create the grouper of each leaf of the pattern, None for leaves without groups."""
        made = {
            leaf.index: self._make_grouper(leaf, len(plan.key_heads))
            for plan in head_plans(self)
            for leaf in plan.leaves
            if leaf.pattern.by_content
        }
        return [made.get(index) for index in range(len(self.pattern.leaves()))]

    def _make_grouper(self, leaf: Leaf, num_heads: int) -> Grouper:
        """Returns what assigns tokens to the groups of a leaf: the pattern's own, or centroids, or axes of a hash."""
        pattern, seed = leaf.pattern, cast(int, derived_seed(self.seed, leaf.index))
        if isinstance(pattern, CentroidPattern):
            return Centroids(
                num_heads,
                pattern.num_clusters,
                self.key_dim,
                pattern.ema_decay,
                pattern.revive_after,
                seed,
                pattern.commitment_loss,
                name=f"clusters_{leaf.index}",
                dtype=self.dtype_policy,
            )
        if isinstance(pattern, Hashed):
            sizes = num_heads, self.key_dim, pattern.num_buckets // 2
            return HashAxes(random_directions(self, f"axes_{leaf.index}", sizes, seed))
        # One of the user's own.
        return pattern.make_grouper(num_heads, self.key_dim, seed, self.dtype_policy)  # type: ignore[attr-defined]

    @property
    def groupers(self) -> Sequence[Grouper | None]:  # type: ignore[override]  # computed, where others keep it
        return self._groupers

    def project_heads(self, projection: keras.layers.Layer, x: Tensor, norm: str | None = None) -> Tensor:
        heads = super().project_heads(projection, x, norm)
        return kmeans.normalize(heads) if self.normalize_queries_and_keys else heads

    def group_inputs(self, heads: Tensor) -> Tensor:
        return heads if self.normalize_queries_and_keys else kmeans.normalize(heads)

    def score_inputs(self, query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor | None]:
        query, key = super().score_inputs(query, key)
        if not self.normalize_queries_and_keys:
            return query, key
        # Normalized heads are float32.
        return ops.cast(query, self.compute_dtype), None if key is None else ops.cast(key, self.compute_dtype)

    @property
    def position_encoding(self) -> NoPosition:
        position = super().position_encoding
        if self.share_qk:
            position = position.scaled(self.score_scale**0.5)
        if isinstance(position, Relative) and not self.has_relative_values:
            return position.with_token_distances()
        return position

    def get_config(self) -> Config:
        names = ("share_qk", "mask_self", "normalize_queries_and_keys")
        config = {**super().get_config(), "pattern": keras.saving.serialize_keras_object(self.pattern)}
        return {**config, **{name: getattr(self, name) for name in names}}


def _checked_pattern(pattern: Any) -> Pattern:
    """Returns a pattern; raises a `ValueError` for what is none, or one that lacks something."""
    if not isinstance(pattern, Pattern):
        raise ValueError(
            "`pattern` must be a tsa.patterns.Pattern, such as Window(256) | First(4); layers go side by side in a "
            f"MixedAttention. Received: pattern={pattern!r}."
        )
    if not dataclasses.is_dataclass(pattern):
        raise ValueError(
            "`pattern` must be a frozen dataclass, so that it has a config: decorate its class with "
            f"@dataclasses.dataclass(frozen=True). Received: {type(pattern).__name__}."
        )
    for part in (getattr(leaf, "pattern", leaf) for leaf in pattern.leaves()):
        if (
            part.by_content
            and not isinstance(part, CentroidPattern | Hashed | BestOfCluster)
            and not hasattr(part, "make_grouper")
        ):
            raise ValueError(
                "`pattern` must define `make_grouper` in each part in which content decides. "
                f"Received: {type(part).__name__} without it."
            )
    return pattern
