"""Local attention: a sliding window or blocks."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.parts.adaptive_span import checked_span, computed_window, make_span, read_span
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config, Shape


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LocalAttention(AttentionLayer):
    """Local attention: each query attends to a sliding window or to neighboring blocks, in O(T (window + block)).

    With `window`, query i attends to keys j with |i - j| < window, or with 0 <= i - j < window under a causal mask.
    Without `window`, query i of block g = i // block_size attends to the blocks
    g - num_blocks_before .. g + num_blocks_after (Roy et al. 2021, section 3). Under a causal mask, query i attends
    only to positions j <= i. The softmax is over q . k / sqrt(key_dim), as in `keras.layers.MultiHeadAttention`.

    The sequence can have any length: the last block is padded with masked positions. A sequence shorter than the block
    or the window gets dense attention. Training differs from evaluation only in dropout.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: positions per block, default 256. Ignored with `window`.
        num_blocks_before: blocks before the query's block. None: 1.
        num_blocks_after: blocks after the query's block. None: 0 under a causal mask, otherwise `num_blocks_before`.
        key_block_size: positions per block of keys and values, for cross-attention to a sequence of another length.
            Block g of the keys is aligned with block g of the queries. Causal masks then raise an error. None:
            `block_size`.
        window: positions on each side, including the query's own; `num_blocks_*` must then be None. None: use blocks.
        sliding_window: alias of `window`, as in Keras.
        adaptive_span: True: each head learns its span, a fraction of `window` (Sukhbaatar et al. 2019). A dictionary
            sets options: "ramp", positions over which the mask falls from 1 to 0, default 32; "loss", weight of the
            span loss window * mean(span), default 1e-7; "initial", initial span, default 0. None: use the whole window.
        use_successor_values: whether attention to key j reads its successor value, the value of token j + 1. A query
            attends to the last `window` earlier tokens and never to itself (`tsa.patterns.Successors`). Only for causal
            self-attention. Default False.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: if an argument is invalid, if `num_blocks_*` or `key_block_size` is given with `window`, or if a
            layer with `key_block_size` gets a causal mask.

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
                    "`sliding_window` must be None if `window`, the same argument, is given. "
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
                "`num_blocks_before` and `num_blocks_after` must be None if `window` is given. Received: "
                f"window={window}, num_blocks_before={num_blocks_before}, num_blocks_after={num_blocks_after}."
            )
        if window is not None and key_block_size is not None:
            raise ValueError(
                "`key_block_size` must be None if `window` is given. "
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
        """The pattern of the heads.

        With `adaptive_span`, the window of the pattern is the number of positions that calls compute. This number is
        `window` until the window is shrunk to the learned spans.
        """
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
        """Return the `AttentionOptions` of a call. In training, also add the span loss with `add_loss`."""
        options = super().attention_options()
        return options if self.span is None else options._replace(span=read_span(self, training))

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("block_size", "num_blocks_before", "num_blocks_after", "key_block_size")
        names += ("window", "adaptive_span", "use_successor_values")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
