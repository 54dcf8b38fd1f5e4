"""Decoding that attends to another sequence, whose keys and values are computed once."""

from keras import ops

from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.groupers import groups_of_leaves
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.masks import as_tensor, mask_of_tokens
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.positions import rotate_key
from tf_sparse_attention.patterns.cross_decoding import cross_cache, decode_cross


class CrossAttentionCache:
    """The two methods of decoding that attends to another, complete sequence, as a decoder does to its encoder.

    The results are those of a call `layer(x, value, key)` without causal mask, row for row, without dropout. A layer
    has them where what a query sees depends on no other query.
    """

    @property
    def reason_against_crossing(self):
        """Why the layer cannot decode across sequences, as text; None if it can."""
        if self.share_qk:
            return "queries serve as keys"
        pattern = self.make_pattern(causal=False)
        return None if pattern.causal_selection else pattern.cache_unsupported_reason()

    def init_cross_cache(self, value, key=None, value_mask=None, key_mask=None):
        """Returns what is kept of the other sequence: it is computed once and does not change.

        Args:
            value: float (B, S, D'), as in a call, likewise the others.
            key: float (B, S, D''). None: `value`.
            value_mask: bool (B, S). None: the mask that `value` carries.
            key_mask: bool (B, S), likewise.

        Returns:
            Dictionary of tensors: floats in the compute dtype, and what is masked.

        Raises:
            ValueError: if the layer cannot decode across sequences or is not built, and for arguments that do not fit.
        """
        check_crosses(self)
        if not self.built:
            raise ValueError(f"`{self.name}` must be built before it decodes: call it, or `build` it.")
        value, key = as_tensor(value), as_tensor(value if key is None else key)
        attention_checks.check_shapes(value.shape, value.shape, key.shape)
        sizes = (projection.kernel.shape[0] for projection in (self._value, self._key))
        attention_checks.check_features(self.name, sizes, value=value.shape, key=key.shape)
        masks = mask_of_tokens("value_mask", value_mask, value), mask_of_tokens("key_mask", key_mask, key)
        mask = merge(*masks)
        mask = None if mask is None else ops.broadcast_to(mask, shape(value)[:2])
        key, value = (projections.heads_first(x) for x in (self._key(key), self._value(value)))
        pattern = self.make_pattern(causal=False)
        _, key = self.normalize_heads(key, key)
        groups = groups_of_leaves(self, pattern, key, ops.arange(shape(key)[2], dtype="int32")[None])
        _, key = self.score_inputs(key, key)
        return cross_cache(pattern, rotate_key(self.key_position_encoding, key), value, mask, groups)

    def decode_across(self, x, cache, index):
        """Returns the result for one query a row.

        Args:
            x: float (B, 1, D).
            cache: what `init_cross_cache` returned.
            index: int32 () or (B,), the position of the query in its own sequence.

        Returns:
            The output (B, 1, D).
        """
        index = ops.broadcast_to(ops.cast(index, "int32"), (shape(x)[0],))
        query = projections.heads_of(self._query, x)
        return self.join_heads(self.decode_cross_attention(query, cache, index))

    def decode_cross_attention(self, query, cache, index):
        """Returns attended heads (B, N, 1, Hv) of projected, unscaled ones (B, N, 1, H) at `index` int32 (B,)."""
        pattern = self.make_pattern(causal=False)
        query, _ = self.normalize_heads(query, query)
        groups = groups_of_leaves(self, pattern, query, index[:, None])
        query, _ = self.score_inputs(query, query)
        return decode_cross(pattern, cache, query, groups, index, self.decoding_options(causal=False))


def check_crosses(layer):
    """Raises a `ValueError` for a layer that cannot decode across sequences."""
    if layer.reason_against_crossing is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes across sequences: {layer.reason_against_crossing}. Call it with "
            "all queries at once."
        )
