"""Decoding that attends to another sequence, whose keys and values are computed once."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.cache_checks import check_index, check_pattern_entries
from tf_sparse_attention.layers.attention.groupers import groups_of_leaves, groups_of_sequence
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.masks import as_tensor, mask_of_tokens, zero_padding
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.positions import rotate_key
from tf_sparse_attention.patterns.engine.cross_decoding import cross_cache, decode_cross_pattern
from tf_sparse_attention.patterns.engine.slots import Cache
from tf_sparse_attention.patterns.pattern import Pattern, check_length
from tf_sparse_attention.types import Size, Tensor


class CrossAttentionCache:
    """The two methods of decoding that attends to another, complete sequence, as a decoder does to its encoder.

    The results are those of a call `layer(x, value, key)` without causal mask, row for row, without dropout. A layer
    has them where what a query sees depends on no other query.
    """

    @property
    def cross_cache_unsupported_reason(self) -> str | None:
        """Why the layer cannot decode with a cross-attention cache, as text; None if it can."""
        if self.must_be_causal:
            return f"{self.causal_part} is for causal self-attention alone"
        if self.share_qk:
            return "queries serve as keys"
        pattern = self.make_pattern(causal=False)
        return None if pattern.causal_selection else pattern.cache_unsupported_reason()

    def init_cross_cache(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Cache:
        """Returns the keys and values of the other sequence, which are computed once and do not change.

        Args:
            value: float (B, S, D'), as in a call, likewise the others.
            key: float (B, S, D''). None: `value`.
            value_mask: bool (B, S). None: the mask that `value` carries.
            key_mask: bool (B, S), likewise.

        Returns:
            Dictionary of tensors: floats in the compute dtype, and what is masked.

        Raises:
            ValueError: if the layer has no cross-attention cache or is not built, and for arguments that do not fit.
        """
        check_has_cross_cache(self)
        if not self.built:
            raise ValueError(f"`{self.name}` must be built before it decodes: call it, or `build` it.")
        value, key = as_tensor(value), as_tensor(value if key is None else key)
        attention_checks.check_shapes(value.shape, value.shape, key.shape)
        sizes = (projection.kernel.shape[0] for projection in (self._value, self._key))
        attention_checks.check_features(self.name, sizes, value=value.shape, key=key.shape)
        masks = mask_of_tokens("value_mask", value_mask, value), mask_of_tokens("key_mask", key_mask, key)
        mask = merge(*masks)
        mask = None if mask is None else ops.broadcast_to(mask, shape(value)[:2])
        value, key = zero_padding(value, mask), zero_padding(key, mask)
        key, value = self.project_heads(self._key, key), projections.heads_of(self._value, value)
        pattern = self.make_pattern(causal=False)
        check_length(pattern, "value", shape(value)[2])
        groups, key = describe_keys(self, pattern, key, key, mask)
        return cross_cache(self.plan_heads(pattern), key, value, mask, groups)

    def decode_cross(self, x: Tensor, cache: Cache, index: Size) -> Tensor:
        """Returns the result for one query a row.

        Args:
            x: float (B, 1, D).
            cache: what `init_cross_cache` returned.
            index: int32 () or (B,), the position of the query in its own sequence.

        Returns:
            The output (B, 1, D).

        Raises:
            ValueError: for a cache of another layer, and for an index that is no integer or less than 0.
        """
        check_has_cross_cache(self)
        check_pattern_entries(cache, self.plan_heads(self.make_pattern(causal=False)))
        check_index(x, index)
        index = ops.broadcast_to(ops.cast(index, "int32"), (shape(x)[0],))
        heads = self.decode_cross_attention(self.project_heads(self._query, x), cache, index)
        return self.join_heads(x, heads)

    def decode_cross_attention(self, query: Tensor, cache: Cache, index: Tensor) -> Tensor:
        """Returns attended heads (B, N, 1, Hv) of projected, unscaled ones (B, N, 1, H) at `index` int32 (B,)."""
        pattern = self.make_pattern(causal=False)
        groups = groups_of_leaves(self, pattern, query, index[:, None])
        query, _ = self.score_inputs(query, query)
        plans, options = self.plan_heads(pattern), self.attention_options(causal=False)
        return decode_cross_pattern(plans, cache, query, groups, index, options)


def describe_keys(
    layer: keras.layers.Layer,
    pattern: Pattern,
    query: Tensor,
    key: Tensor | None,
    mask: Tensor | None = None,
    is_turned: bool = True,
) -> tuple[list[Any], Tensor]:
    """Returns `groups_of_sequence` of keys (B, M, S, H), and the keys as a cache holds them, turned by positions.

    Args:
        layer: an `AttentionLayer`.
        pattern: of the layer.
        query: the queries, which serve as keys where there are none.
        key: the keys, or None.
        mask: bool (B, S), False for keys that no query may see; or None.
        is_turned: whether positions turn the keys. Default True.
    """
    groups = groups_of_sequence(layer, pattern, query if key is None else key, mask)
    query, key = layer.score_inputs(query, key)
    key = query if key is None else key
    return groups, rotate_key(layer.position_encoding, key) if is_turned else key


def check_has_cross_cache(layer: keras.layers.Layer) -> None:
    """Raises a `ValueError` for a layer that cannot decode with a cross-attention cache."""
    if layer.cross_cache_unsupported_reason is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes with a cross-attention cache: "
            f"{layer.cross_cache_unsupported_reason}. "
            "Call it with all queries at once."
        )
