"""Local attention as a Keras layer."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.parts.adaptive_span import checked_span, computed_window, make_span, span_of_call
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config, Shape


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LocalAttention(AttentionLayer):
    """Multi-head attention of each position over its neighbourhood, in O(T (window + block)) time and memory.

    Blocks (Roy et al. 2021, section 3): position i of block g = i // block_size sees the blocks g - num_blocks_before
    .. g + num_blocks_after, up to itself if causal. Window: the positions j with 0 <= i - j < window if causal,
    |i - j| < window otherwise. Softmax of q . k / sqrt(key_dim), as in `keras.layers.MultiHeadAttention`.

    Any length works: the last block is padded with slots that are masked. A sequence shorter than the block or the
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
        sliding_window: Keras's name of `window`. None: not given.
        adaptive_span: True for spans that each head learns within `window` (Sukhbaatar et al. 2019), or a dictionary
            with some of "ramp" (positions over which a span ends, default 32), "loss" (factor of window times mean
            span in the loss, default 1e-7) and "initial" (share of the window at first, default 0).
            None: all of the window.
        use_successor_values: whether a token sees the last `window` earlier tokens, itself never, each with the value
            of the token after it (`tsa.patterns.Successors`), in causal self-attention. Default False.
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
        num_heads: int,
        key_dim: int,
        *,
        block_size: int = 256,
        num_blocks_before: int | None = None,
        num_blocks_after: int | None = None,
        key_block_size: int | None = None,
        window: int | None = None,
        sliding_window: int | None = None,
        adaptive_span: bool | dict[str, float] | None = None,
        use_successor_values: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        if sliding_window is not None:
            if window is not None:
                raise ValueError(
                    "`sliding_window` must be None where `window`, its name here, is given. "
                    f"Received: sliding_window={sliding_window}, window={window}."
                )
            checks.check_count("sliding_window", sliding_window)
            window = sliding_window
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
        attention_checks.check_successors(use_successor_values)
        if use_successor_values and window is None:
            raise ValueError("`window` must be given with `use_successor_values`. Received: window=None.")
        self.block_size = block_size
        self.key_block_size = key_block_size
        self.num_blocks_before = num_blocks_before
        self.num_blocks_after = num_blocks_after
        self.window = window
        self.use_successor_values = use_successor_values
        self.adaptive_span = checked_span(adaptive_span, window)
        if window is None:
            before = 1 if num_blocks_before is None else num_blocks_before
            self._pattern: Pattern = Blocks(block_size, before, num_blocks_after, key_block_size)
        else:
            self._pattern = self._window_pattern(window)

    def _window_pattern(self, window: int) -> Pattern:
        return Successors(Window(window)) if self.use_successor_values else Window(window)

    @property
    def pattern(self) -> Pattern:
        """The pattern of the heads, whose window shrinks with that of `adaptive_span`."""
        return self._pattern if self.adaptive_span is None else self._window_pattern(computed_window(self))

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self.span = make_span(self, self.num_heads)

    def attention_options(self, training: bool = False) -> AttentionOptions:
        return super().attention_options()._replace(span=span_of_call(self, training))

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("block_size", "num_blocks_before", "num_blocks_after", "key_block_size")
        names += ("window", "adaptive_span", "use_successor_values")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
