"""Attention with any pattern."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, head_plans
from tf_sparse_attention.layers.parts.selectors import make_selectors
from tf_sparse_attention.layers.parts.variables import drawn_seed
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.positions import NoPosition, Relative
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan
from tf_sparse_attention.patterns.pattern import Pattern, primitives
from tf_sparse_attention.patterns.selected_blocks import GivenBlocks
from tf_sparse_attention.patterns.selection import Selector
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SparseAttention(AttentionLayer):
    """Multi-head attention with any pattern or composition of `tsa.patterns`.

    `pattern=Window(256) | First(4)` is a sliding window with attention sinks. `Window(128) | Nearest(16, 64)` is a
    window and the query's k-means cluster in one softmax. `Heads([(6, Window(256)), (2, Stride(64))])` gives heads
    different patterns. In a union each key counts once. The cost is the sum over the parts. The softmax is over
    q . k / sqrt(key_dim), as in `keras.layers.MultiHeadAttention`. Position encodings use distances in tokens.

    Each content-based part (`Nearest`, `TopKeys`, `Hashed`) has its own centroids or hash directions. Clusters and
    buckets are assigned from LN(q) and LN(k), where LN is layer normalization without scale. `Nearest` and `Hashed` are
    3 to 4 times faster with `share_qk=True`.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        pattern: a `tsa.patterns.Pattern`, or its serialized config.
        share_qk: whether queries are used as keys. The layer then has no key projection, and `value` must be None.
            Default False.
        mask_self: whether to mask a token's own key, unless it is the only key of the token. None (default):
            `share_qk`, because with shared queries and keys the token itself has the highest score.
        normalize_queries_and_keys: whether scores are LN(q) . LN(k), as in `RoutingAttention`, times `attention_scale`
            if it is given. Default False: q . k / sqrt(key_dim).
        **kwargs: the other arguments of `AttentionLayer`. With a content-based part, `position="relative"` has a table
            only for keys and doubles the cost of the layer. `seed` also determines centroids and hash directions.

    Raises:
        ValueError: if an argument is invalid, or if the pattern is for another number of heads.

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
        self.share_qk = share_qk  # before `super().__init__`, which checks it
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_optional_switch("mask_self", mask_self)
        if isinstance(pattern, dict):
            pattern = keras.saving.deserialize_keras_object(pattern)
        checks.check_switch("normalize_queries_and_keys", normalize_queries_and_keys)
        self._pattern = _checked_pattern(pattern)
        plans = head_plans(self)  # raises an error for another number of heads
        _check_softmaxes(self.pattern, plans, self.head_settings.use_sink)
        self.mask_self = mask_self
        self.normalize_queries_and_keys = normalize_queries_and_keys
        # For selected blocks the positions of keys equal their slots.
        self.has_relative_values = all(
            isinstance(leaf, GivenBlocks) or not leaf.content_based for leaf in primitives(self.pattern)
        )
        if normalize_queries_and_keys and self.head_settings.attention_scale is None:
            self.score_scale = 1.0
        if self.pattern.content_based:
            self.seed = drawn_seed(self.seed)

    def make_selectors(self) -> list[Selector | None]:
        return make_selectors(self, head_plans(self), normalizes=not self.normalize_queries_and_keys)

    def project_heads(self, projection: keras.layers.Layer, x: Tensor, norm: str | None = None) -> Tensor:
        heads = super().project_heads(projection, x, norm)
        return kmeans.normalize(heads) if self.normalize_queries_and_keys else heads

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


def _check_softmaxes(pattern: Pattern, plans: Sequence[HeadPlan], use_sink: bool) -> None:
    """Raise a `ValueError` if a pattern with several softmaxes per query is part of a union or has a sink."""
    for plan in plans:
        if not any(isinstance(leaf.pattern, BestOfCluster) for leaf in plan.leaves):
            continue
        if len(plan.leaves) > 1:
            raise ValueError(
                "`parts` of a union must have one softmax per query. BestOfCluster, which `RoutingAttention` has with "
                f"selection='top_k', has several. Use Nearest. Received: pattern={pattern!r}."
            )
        if use_sink:
            raise ValueError(
                "`use_sink` must be False with a selection that has several softmaxes per query: use Nearest, or "
                f"selection='nearest'. Received: use_sink=True, pattern={pattern!r}."
            )


def _checked_pattern(pattern: Any) -> Pattern:
    """Return a pattern, or raise a `ValueError` if it is incomplete or not a pattern."""
    if not isinstance(pattern, Pattern):
        raise ValueError(
            "`pattern` must be a tsa.patterns.Pattern, such as Window(256) | First(4). To combine layers, use "
            f"MixedAttention. Received: pattern={pattern!r}."
        )
    if not dataclasses.is_dataclass(pattern):
        raise ValueError(
            "`pattern` must be a frozen dataclass: decorate its class with @dataclasses.dataclass(frozen=True). "
            f"Received: {type(pattern).__name__}."
        )
    for part in (leaf.pattern if isinstance(leaf, Successors) else leaf for leaf in primitives(pattern)):
        if part.content_based and type(part).make_selector is Pattern.make_selector:
            raise ValueError(
                "`pattern` must define `make_selector` in each content-based part. "
                f"Received: {type(part).__name__} without `make_selector`."
            )
    return pattern
