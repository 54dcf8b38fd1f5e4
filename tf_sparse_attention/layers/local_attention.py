"""Local attention as a Keras layer."""

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.adaptive_span import checked_span, make_span, span_of_call
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.decoding import at_most, attend_kept, empty_places, keep_last, keep_next, kept_last
from tf_sparse_attention.ops.decoding_across import kept_run, sequence_cache
from tf_sparse_attention.ops.local import local_attention
from tf_sparse_attention.ops.masks import block_mask, window_mask
from tf_sparse_attention.ops.positions import rotate_key


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LocalAttention(AttentionLayer):
    """Multi-head attention of each position over its neighbourhood, in O(T (window + block)) time and memory.

    Blocks (Roy et al. 2021, section 3): position i of block g = i // block_size sees the blocks g - num_blocks_before
    .. g + num_blocks_after, up to itself if causal. Window: the positions j with 0 <= i - j < window if causal,
    |i - j| < window otherwise. Softmax of q . k / sqrt(key_dim), as in `keras.layers.MultiHeadAttention`.

    Any length works: the last block is filled with places that no one sees. A sequence shorter than the block or the
    window is dense attention. Evaluation and training differ in dropout alone.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: positions in a block, default 256. Ignored with `window`, for which the best one is taken.
        num_blocks_before: blocks seen before the own one. None: 1.
        num_blocks_after: blocks seen after the own one. None: 0 in a causal call, else as many as before.
        key_block_size: positions in a block of values and keys that are another sequence, whose block g goes with block
            g of the queries: encoder and decoder of different lengths; not in a causal call. None: `block_size`.
        window: positions a query sees on a side, counting itself; then `num_blocks_*` must be None. None: blocks.
        adaptive_span: True for spans that each head learns within `window` (Sukhbaatar et al. 2019), or a dictionary
            with some of "ramp" (positions over which a span ends, default 32), "loss" (factor of window times mean
            span in the loss, default 1e-7) and "initial" (share of the window at first, default 0). See
            `AdaptiveSpan`. None: all of the window.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: for a wrong argument, for `num_blocks_*` or `key_block_size` together with `window`, and for a
            causal call with `key_block_size`.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = LocalAttention(num_heads=4, key_dim=16, window=128)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        *,
        block_size=256,
        num_blocks_before=None,
        num_blocks_after=None,
        key_block_size=None,
        window=None,
        adaptive_span=None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("block_size", block_size)
        checks.check_optional_count("num_blocks_before", num_blocks_before, minimum=0)
        checks.check_optional_count("num_blocks_after", num_blocks_after, minimum=0)
        checks.check_optional_count("key_block_size", key_block_size)
        checks.check_optional_count("window", window)
        if window is not None and not (num_blocks_before is None and num_blocks_after is None):
            raise ValueError(
                "`num_blocks_before` and `num_blocks_after` must be None where `window` is given. Received: "
                f"window={window}, num_blocks_before={num_blocks_before}, num_blocks_after={num_blocks_after}."
            )
        if window is not None and key_block_size is not None:
            raise ValueError(
                "`key_block_size` must be None where `window` is given. "
                f"Received: window={window}, key_block_size={key_block_size}."
            )
        self.block_size = block_size
        self.key_block_size = key_block_size
        self.num_blocks_before = num_blocks_before
        self.num_blocks_after = num_blocks_after
        self.window = window
        self.adaptive_span = checked_span(adaptive_span, window)

    def build(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.span = make_span(self, self.num_heads)

    @property
    def can_be_causal(self):
        return self.key_block_size is None  # else the two sequences have other positions

    @property
    def supports_memory(self):
        return self.key_block_size is None  # else blocks of memory and blocks of queries would not go together

    @property
    def reach(self):
        if self.window is not None:
            return self.window - 1
        return (max(self._blocks(causal=False)) + 1) * max(self.block_size, self.key_block_size or 0) - 1

    def _blocks(self, causal):
        """Returns the blocks seen before and after the own one."""
        before = 1 if self.num_blocks_before is None else self.num_blocks_before
        if causal:
            return before, 0
        return before, before if self.num_blocks_after is None else self.num_blocks_after

    def attend_heads(self, query, key, value, masks, causal, training, return_weights):
        attended = self.attend_locally(query, key, value, masks, causal, training, return_weights=return_weights)
        return attended.output, attended.weights

    def attend_locally(self, query, key, value, masks, causal, training, **options):
        """Returns the `Attended` of projected heads; `options` are of `attend`."""
        if causal and self.key_block_size is not None:
            raise ValueError(
                "`use_causal_mask` must be False with `key_block_size`: the two sequences have other positions. "
                f"Received: use_causal_mask=True, key_block_size={self.key_block_size}."
            )
        before, after = self._blocks(causal)
        window, span = span_of_call(self, training)
        return local_attention(
            query * self.key_dim**-0.5,
            key,
            value,
            block_size=self.block_size,
            num_blocks_before=before,
            num_blocks_after=after,
            key_block_size=self.key_block_size,
            window=window,
            causal=causal,
            masks=masks,
            position=self.position_of_heads,
            span=span,
            dropout=self.dropout_of_weights(training),
            **options,
        )

    @property
    def reason_against_cache(self):
        return None if self.can_be_causal else super().reason_against_cache

    def new_cache(self, batch_size, max_length):
        size = span_of_call(self, training=False)[0] or (self._blocks(causal=True)[0] + 1) * self.block_size
        sizes = self.num_heads, at_most(size, max_length), self.key_dim, self.value_dim
        return empty_places(batch_size, *sizes, self.compute_dtype)

    def fill_cache(self, cache, query, key, value, lengths):
        return keep_last(cache, rotate_key(self.position_of_heads, key), value, lengths)

    def decode_heads(self, query, key, value, cache, index):
        position, first = self.position_of_heads, None
        cache = keep_next(cache, rotate_key(position, key, index), value, index)
        if self.window is None:
            first = (index // self.block_size - self._blocks(causal=True)[0]) * self.block_size
        kept, span = kept_last(cache, index, first), span_of_call(self, training=False)[1]
        return attend_kept(query * self.key_dim**-0.5, kept, index, position, span=span).output, cache

    reason_against_crossing = None

    def new_cross_cache(self, key, value, key_mask):
        return sequence_cache(rotate_key(self.position_of_heads, key), value, key_mask)

    def decode_heads_across(self, query, cache, index):
        window, span = span_of_call(self, training=False)
        if window is None:
            (before, after), size = self._blocks(causal=False), self.key_block_size or self.block_size
            run = (index // self.block_size - before) * size, (before + 1 + after) * size
        else:
            run = index - window + 1, 2 * window - 1
        kept = kept_run(cache, index, *run)
        return attend_kept(query * self.key_dim**-0.5, kept, index, self.position_of_heads, span=span).output

    def pattern(self, query, key, masks, causal):
        lengths = shape(query)[2], shape(key)[2]
        if self.window is not None:
            seen = window_mask(*lengths, self.window, causal, masks.num_memory)
            if self.span is None:
                return seen
            return ops.logical_and(seen, self.span.read().seen(*lengths, masks.num_memory))
        blocks = self.block_size, *self._blocks(causal), causal
        return block_mask(*lengths, *blocks, masks.num_memory, self.key_block_size)

    def get_config(self):
        names = ("block_size", "num_blocks_before", "num_blocks_after", "key_block_size", "window", "adaptive_span")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
