"""Local attention with global tokens (Longformer, BigBird)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import ProjectedHeads
from tf_sparse_attention.layers.attention.local_attention import LocalAttention
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.adaptive_span import read_span
from tf_sparse_attention.layers.parts.call_inputs import as_tensor
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks, dense_mask
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.engine.attention import attend_pattern, dense_pattern
from tf_sparse_attention.patterns.global_tokens import Global, GlobalQueries, find_global
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class GlobalLocalAttention(LocalAttention):
    """Self-attention to a local neighborhood and to M global tokens, which attend to all tokens, in O(T (window + M)).

    A token attends to its window or blocks and to the global tokens in one softmax. Global tokens attend to every
    token, with separate projections if `own_projections` is True. Sources: Longformer (Beltagy et al. 2020, section
    3.1), whose global tokens have separate projections, and BigBird (Zaheer et al. 2020), whose first and last blocks
    are global.

    The layer is not causal: global tokens depend on later tokens, and every token attends to them.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_global: M, maximum number of global tokens per row. If more tokens are marked, only the first M are global.
            Default 64.
        num_first_global: number of leading tokens that are global in every call, for example [CLS]. Default 0.
        own_projections: whether global tokens attend with separate projections, as in Longformer. Default False.
        dense_length: sequences up to this length use dense attention, as in BigBird's published code. Default 0.
        **kwargs: the other arguments of `LocalAttention`, except `key_block_size`. Position encodings use distances in
            tokens, including distances to global tokens. `adaptive_span` limits only the window.

    Call arguments:
        global_mask: bool (B, T), True for global tokens, in addition to the first `num_first_global`. Or int (B, T):
            the number of times each global token counts in the softmax of other tokens, 0 for tokens that are not
            global. None: only the first `num_first_global` tokens are global.
        The other call arguments are the same as in `AttentionLayer` for self-attention, without `memory`.

    Raises:
        ValueError: if an argument is invalid, for a causal mask, or if `value` or `key` is not the query.

    Example:
        >>> layer = GlobalLocalAttention(num_heads=4, key_dim=16, window=128, num_first_global=1)
        >>> tuple(layer(keras.random.normal((2, 1000, 64))).shape)
        (2, 1000, 64)
    """

    cross_cache_unsupported_reason = "global tokens belong to the sequence of the queries"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        num_global: int = 64,
        num_first_global: int = 0,
        own_projections: bool = False,
        dense_length: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("num_global", num_global)
        checks.check_count("num_first_global", num_first_global, minimum=0)
        checks.check_switch("own_projections", own_projections)
        checks.check_count("dense_length", dense_length, minimum=0)
        if self.key_block_size is not None:
            raise ValueError(
                "`key_block_size` must be None, because the layer is for self-attention. "
                f"Received: key_block_size={self.key_block_size}."
            )
        if num_first_global > num_global:
            raise ValueError(
                f"`num_first_global` must be at most `num_global`. Received: num_first_global={num_first_global}, "
                f"num_global={num_global}."
            )
        if own_projections and dense_length:
            raise ValueError(f"`dense_length` must be 0 with `own_projections`. Received: dense_length={dense_length}.")
        self.num_global = num_global
        self.num_first_global = num_first_global
        self.own_projections = own_projections
        self.dense_length = dense_length
        self.extra_mask_names = ("global_mask",)

    @property
    def pattern(self) -> Pattern:
        """The pattern of tokens that are not global: the window or blocks, and the global tokens."""
        return Global(self.num_global) | super().pattern

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self._global: list[keras.layers.Layer] = []
        if self.own_projections:
            sizes = {
                "global_query": (self.num_heads, self.key_dim),
                "global_key": (self.num_key_heads, self.key_dim),
                "global_value": (self.num_key_heads, self.value_dim),
            }
            self._global = [
                projections.input_projection(self, name, query_shape, *size, self.use_bias, self._objects)
                for name, size in sizes.items()
            ]

    def copy_projections(self, attention: keras.layers.Layer, heads: slice = slice(None)) -> None:
        """Copy the projections. Global projections start from the same weights, as in Longformer."""
        super().copy_projections(attention, heads)
        for own, source in zip(self._global, (self._query, self._key, self._value), strict=False):
            own.set_weights(source.get_weights())

    def project(self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> ProjectedHeads:
        """Project inputs to queries, keys and values, followed by the global projections, if any."""
        if value is not None:
            raise ValueError("`value` must be None, because the layer is for self-attention. Received: a value.")
        heads = super().project(query)
        if not self._global:
            return heads
        own = [
            self.project_heads(layer, query, norm)
            for layer, norm in zip(self._global[:2], ("query", "key"), strict=True)
        ]
        return *heads, *own, self.project_values(self._global[2], query)

    def add_extra_masks(self, masks: TokenMasks, query: Tensor, global_mask: Tensor | None = None) -> TokenMasks:
        counts, sizes = as_tensor(global_mask), shape(query)[:2]
        if counts is not None:
            checks.check_static("global_mask", counts.shape, ((query.shape[0], 1), (query.shape[1],)))
            counts = ops.broadcast_to(ops.cast(counts, "int32"), sizes)
        if self.num_first_global:
            first = ops.cast(ops.arange(sizes[1]) < self.num_first_global, "int32")
            counts = ops.broadcast_to(first, sizes) if counts is None else ops.maximum(counts, first)
        return masks._replace(global_counts=counts)

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        call = heads, masks, training, return_weights
        length = shape(heads[0])[2]
        if isinstance(length, int) or self.dense_length == 0:
            dense = isinstance(length, int) and length <= self.dense_length
            return self._attend_densely(*call) if dense else self._attend_sparsely(*call)
        output, weights = ops.cond(
            length <= self.dense_length,
            lambda: _replace_none(self._attend_densely(*call)),
            lambda: _replace_none(self._attend_sparsely(*call)),
        )
        return output, weights if return_weights else None

    def _attend_sparsely(
        self, heads: ProjectedHeads, masks: TokenMasks, training: bool, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if masks.global_counts is None:
            span = read_span(self, training)
            return self._attend(super().pattern, heads[:3], masks, training, return_weights, span=span)
        tokens = find_global(masks.global_counts, masks.key_mask, self.num_global)
        call = masks, training, return_weights
        span = read_span(self, training)
        local = self._attend(self.pattern, heads[:3], *call, selected=[tokens, None], span=span)
        # Separately, because global tokens may have other projections.
        from_global = self._attend(GlobalQueries(self.num_global), heads[-3:], *call, selected=[tokens])
        is_global = tokens.marks[:, None, :, None]
        weights = ops.where(is_global, from_global[1], local[1]) if return_weights else None
        return ops.where(is_global, from_global[0], local[0]), weights

    def _attend_densely(
        self, heads: ProjectedHeads, masks: TokenMasks, training: bool, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        return self._attend(Blocks(self.dense_length, 0, 0), heads, masks, training, return_weights)

    def _attend(
        self,
        pattern: Pattern,
        heads: ProjectedHeads,
        masks: TokenMasks,
        training: bool,
        return_weights: bool,
        selected: Sequence[Selection | None] | None = None,
        span: Span | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = heads
        options = super().attention_options()._replace(span=span, hide_self=None)
        attended = attend_pattern(
            pattern,
            *self.score_inputs(query, key),
            value,
            masks=masks,
            select=None if selected is None else lambda *_: selected,
            dropout=Dropout.for_call(self.dropout, self._seeds, training),
            return_weights=return_weights,
            options=options,
        )
        return attended.output, attended.weights

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        query, pattern = heads[0], super().pattern
        call = Call.from_inputs(pattern, query, query, False, TokenMasks())
        mask = dense_pattern(pattern, call, self.num_heads, options=self.attention_options())
        mask = ops.logical_or(mask, shape(query)[2] <= self.dense_length)
        if masks.global_counts is not None:
            is_global = find_global(masks.global_counts, masks.key_mask, self.num_global).marks
            mask = ops.logical_or(mask, ops.logical_or(is_global[:, None, None, :], is_global[:, None, :, None]))
        return dense_mask(mask, masks)

    def get_config(self) -> Config:
        names = ("num_global", "num_first_global", "own_projections", "dense_length")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {name: value for name, value in config.items() if name != "key_block_size"}


def _replace_none(results: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Replace None by an empty tensor, because branches of `ops.cond` must return tensors."""
    output, weights = results
    return output, ops.zeros((0,)) if weights is None else weights
