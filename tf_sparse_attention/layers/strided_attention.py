"""Strided attention as a Keras layer."""

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.factorized_attention import FactorizedAttention
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.decoding import Kept, at_most, empty_places, keep, keep_positions, take_positions
from tf_sparse_attention.ops.masks import stride_mask, window_mask
from tf_sparse_attention.ops.strided import strided_attention


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class StridedAttention(FactorizedAttention):
    """Multi-head attention to the last positions and to every `stride`-th one before, in O(T (l + T / l)).

    With l = `stride`: the local part sees the keys j with 0 <= i - j < l if causal, |i - j| < l otherwise; the far part
    those with (i - j) mod l = 0, j <= i if causal. Two layers, or two heads and a layer on top, pass on information
    between any two positions; with l near the square root of T that costs O(T sqrt(T)). It suits data with a period,
    such as the rows of an image (Child et al. 2019, section 4.3).

    Note: differs from the paper's text, whose local set reaches back to i - l, one position more than its published
    code; that position is in the far part. The union of both is the same, with "merged" there is no difference.

    Any length works. A sequence no longer than `stride` has a far part of the query's own position alone.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        stride: l, about the square root of the sequence, or the length of a row. Default 128.
        heads: "split", "merged" or "interleaved", see `FactorizedAttention`. Default "split".
        layer_index: the number of the layer, for "interleaved".
        **kwargs: the other arguments of `AttentionLayer`. `max_distance` is by default the stride: those of the far
            part are clipped unless it is larger.

    Raises:
        ValueError: for a wrong argument.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = StridedAttention(num_heads=4, key_dim=16, stride=32)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(self, num_heads, key_dim, *, stride=128, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("stride", stride)
        self.stride = stride

    @property
    def reach(self):
        return self.stride

    def attend_part(self, part, query, key, value, **options):
        return strided_attention(query, key, value, self.stride, part, **options)

    def pattern_of_part(self, part, query_length, key_length, causal):
        near = window_mask(query_length, key_length, self.stride, causal)
        far = stride_mask(query_length, key_length, self.stride, causal)
        return {"local": near, "far": far, "merged": ops.logical_or(near, far)}[part]

    # Of the far part every position is kept, by phase: `stride` runs of positions that are a stride apart.

    def new_far(self, batch_size, num_heads, max_length):
        size = at_most(self.stride, max_length) * (-(-max_length // self.stride))
        return empty_places(batch_size, num_heads, size, self.key_dim, self.value_dim, self.compute_dtype)

    def fill_far(self, places, key, value):
        phases, rows = self._sizes(places)
        positions = ops.arange(phases, dtype="int32")[:, None] + self.stride * ops.arange(rows, dtype="int32")
        return keep_positions(places, key, value, ops.reshape(positions, (1, 1, phases * rows)))

    def keep_far(self, places, key, value, index):
        _, rows = self._sizes(places)
        return keep(places, key, value, (index % self.stride * rows + index // self.stride)[:, None])

    def kept_far(self, places, index, merged):
        _, rows = self._sizes(places)
        run, phase = ops.arange(rows, dtype="int32"), index % self.stride
        at = (phase[:, None] * rows + run)[:, None]
        positions = (phase[:, None] + self.stride * run)[:, None]
        seen = positions < index[:, None, None] if merged else positions <= index[:, None, None]
        return Kept.at(take_positions(places["key"], at), take_positions(places["value"], at), positions, index, seen)

    def _sizes(self, places):
        """Returns the phases that occur, and the positions of each."""
        size = shape(places["key"])[2]
        phases = at_most(self.stride, size)
        return phases, size // phases

    def get_config(self):
        return {**super().get_config(), "stride": self.stride}
