"""Native sparse attention: compressed blocks, selected blocks and a window."""

from typing import Any, NamedTuple

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.cross_attention_cache import describe_keys
from tf_sparse_attention.layers.attention.pattern_heads import ProjectedHeads
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.block_pooling import BlockPooling
from tf_sparse_attention.layers.parts.seeds_and_dtypes import dropout_of_call
from tf_sparse_attention.ops.attend import Attended
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.compressed_attention import (
    attend_compressed_blocks,
    select_blocks_by_weight,
    visible_blocks,
)
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.selected_blocks import BlockKeys, choices_by_name
from tf_sparse_attention.patterns.call import Call, Known, check_causal
from tf_sparse_attention.patterns.engine.attending import attend_pattern
from tf_sparse_attention.patterns.engine.decoding import decode_pattern
from tf_sparse_attention.patterns.engine.slots import Cache, empty_cache, fill_cache
from tf_sparse_attention.patterns.engine.twin import dense_pattern
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.selected import ChosenBlocks
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config, Shape, Size, Tensor

# Entries of a cache: that of a pattern of one part, which is the selected blocks, and those beside it.
PART, WINDOW, KEYS, VALUES = "part_0", "window", "compressed_key", "compressed_value"


class _Heads(NamedTuple):
    """What tokens are projected to: queries and gates of all parts, keys and values of S, of W and, by token, of C."""

    query: Tensor
    key: Tensor
    value: Tensor
    gates: Tensor
    window_key: Tensor
    window_value: Tensor
    compressed_key: Tensor
    compressed_value: Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class NativeSparseAttention(AttentionLayer):
    """Multi-head attention to compressed blocks, to selected blocks and to a window, added up by gates.

    out_i = g_c C(i) + g_s S(i) + g_w W(i), each part a softmax with keys and values of its own and the same queries,
    the gates of each head sigmoids of projections of the query:
    - C sees one key and one value for each block that is complete at i, made of those of its b tokens by a learned
      function of them and their positions in the block: W silu(sum_s A_s (x_s + p_s) + c). It has no other positions.
    - S sees the query's own block up to i, and of the blocks before it the `num_blocks` - 1 of the largest weights in
      C, added up over the heads that share keys, which see the same blocks. No gradient goes through the choice.
    - W sees the last `window` positions.

    O(T (num_blocks b + window)), and O(T^2 / b) for C: a b-th of dense attention, small and yet quadratic in time and
    memory. Decoding keeps the keys and values of all positions, of all blocks and of the window, and reads T / b
    blocks, num_blocks b positions and the window for a token.

    For causal self-attention alone: call it with `use_causal_mask=True` and without `value`. Blocks lie on positions,
    also of packed documents: a compressed block is made of the tokens of the document of its last token, and tokens of
    that one alone see and choose it. Padding counts in no block. A query sees a compressed block if its attention mask
    lets it see all the keys. Weights that are returned are those of S and W times their gates, without C's.

    Source: Yuan et al. 2025, "Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention" (arXiv
    2502.11089).

    Note: differs from the paper in its blocks, of one size for C and S and without overlap; only the query's own block
    is always selected, there the first one and the two last.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: b, positions of a block. Default 64.
        num_blocks: selected blocks that a query sees, with its own. Default 16.
        window: positions that W sees, the query's own among them. Default 512.
        **kwargs: the other arguments of `AttentionLayer`; `position` is that of S and W.

    Raises:
        ValueError: for a wrong argument, and for a call that is not causal self-attention.

    Example:
        >>> layer = NativeSparseAttention(num_heads=4, key_dim=16, block_size=16, num_blocks=4, window=32)
        >>> tuple(layer(keras.random.normal((2, 200, 64)), use_causal_mask=True).shape)
        (2, 200, 64)
    """

    sees_beyond_window = True

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        block_size: int = 64,
        num_blocks: int = 16,
        window: int = 512,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("window", window)
        self._pattern = ChosenBlocks(block_size, num_blocks)
        self._window = Window(window)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.window = window

    @property
    def reach(self) -> int:
        return max(self.block_size, self._window.reach)

    @property
    def dense_up_to(self) -> int:
        return max(self._pattern.dense_up_to, self.window)

    def make_pattern(self, causal: bool) -> Pattern:
        return self._pattern

    def build_projections(self, query_shape: Shape, value_shape: Shape, key_shape: Shape) -> None:
        super().build_projections(query_shape, value_shape, key_shape)

        def make(name, num_heads, size):
            return projections.input_projection(self, name, query_shape, num_heads, size, self.use_bias, self._objects)

        def pooling(name, size):
            initializer = self._objects["kernel_initializer"]
            return BlockPooling(self.block_size, size, self.use_bias, initializer, name=name, dtype=self.dtype_policy)

        self._gates = make("branch_gate", self.num_heads, 3)
        self._keys = [make(f"{name}_key", self.num_key_heads, self.key_dim) for name in ("window", "compressed")]
        self._values = [make(f"{name}_value", self.num_key_heads, self.value_dim) for name in ("window", "compressed")]
        self._key_pooling = pooling("key_pooling", self.key_dim)
        self._value_pooling = pooling("value_pooling", self.value_dim)

    def copy_projections(self, attention: keras.layers.Layer, heads: slice = slice(None)) -> None:
        """Takes over the projections of another layer, those of keys and values for all parts."""
        super().copy_projections(attention, heads)
        sources: tuple[Any, Any] = self._key, self._value
        for parts, source in zip((self._keys, self._values), sources, strict=True):
            for part in parts:
                part.set_weights(source.get_weights())

    def project(self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> ProjectedHeads:
        """Returns `_Heads`: queries (B, N, T, H), gates (B, N, T, 3), keys (B, M, T, H) and values (B, M, T, Hv)."""
        heads = super().project(query, value, key)
        keys = [self.project_heads(projection, query, norm="key") for projection in self._keys]
        values = [projections.heads_of(projection, query) for projection in self._values]
        gates = ops.sigmoid(projections.heads_of(self._gates, query))
        return _Heads._make((*heads, gates, keys[0], values[0], keys[1], values[1]))

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        check_causal(type(self).__name__, causal)
        own = _Heads(*heads)
        options = {**self.attention_options(causal, training)._asdict(), "return_weights": return_weights}
        options |= {"causal": causal, "masks": masks, "dropout": dropout_of_call(self, training)}
        compressed, chosen = self._attend_compressed(heads, masks, training)
        known: list[Known] = [(choices_by_name(chosen), {})]
        selected = attend_pattern(
            self._pattern, *self.score_inputs(own.query, own.key), own.value, known=known, **options
        )
        near = attend_pattern(self._window, *self.score_inputs(own.query, own.window_key), own.window_value, **options)
        weights = None
        if return_weights:
            weights = own.gates[..., 1:2] * selected.weights + own.gates[..., 2:3] * near.weights
        return _gated(own.gates, compressed, selected, near), weights

    def _attend_compressed(
        self, heads: ProjectedHeads, masks: TokenMasks, training: bool = False
    ) -> tuple[Attended, list[Tensor]]:
        """Returns attention to compressed blocks, and the blocks that are chosen by it."""
        own = _Heads(*heads)
        key, value = own.compressed_key, own.compressed_value
        query, _ = self.score_inputs(own.query, key)
        blocks = BlockKeys.of(masks, shape(key)[2], self.block_size)
        key, value = (
            pooling.of_sums(pooling.sums(x, blocks.counted, blocks.num_blocks))
            for pooling, x in ((self._key_pooling, key), (self._value_pooling, value))
        )
        positions = ops.arange(shape(query)[2], dtype="int32")
        seen = visible_blocks(blocks, positions, masks.query_segments, masks.attention_mask)
        allowed = blocks.before(positions, masks.query_segments)
        options = self._compressed_options()
        chosen = select_blocks_by_weight(query, key, seen, allowed, self.num_blocks - 1, options)
        return attend_compressed_blocks(
            query, key, value, seen, dropout=dropout_of_call(self, training), **options
        ), chosen

    def _compressed_options(self) -> dict[str, Any]:
        options = self.attention_options(causal=True)
        return {"soft_cap": options.soft_cap, "sinks": options.sinks}

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        check_causal(type(self).__name__, causal)
        query, options = heads[0], self.attention_options(causal)
        call = Call.of(self._pattern, query, query, causal, masks)
        _, chosen = self._attend_compressed(heads, masks)
        known: list[Known] = [(choices_by_name(chosen), {})]
        selected = dense_pattern(self._pattern, call, query.shape[1], masks, known, options)
        return ops.logical_or(selected, dense_pattern(self._window, call, query.shape[1], masks, None, options))

    def extra_entries(self, cache: Cache, batch_size: Size, max_length: Size) -> Cache:
        sizes = self.key_dim, self.value_dim
        near = empty_cache(self.plan_heads(self._window), batch_size, sizes, max_length, self.compute_dtype)
        num_blocks = shape(cache[PART]["key"])[2] // self.block_size
        own = batch_size, self.num_key_heads, num_blocks
        poolings = {KEYS: self._key_pooling.empty_cache(*own), VALUES: self._value_pooling.empty_cache(*own)}
        return {WINDOW: near[PART], **poolings}

    def fill_attention(self, heads: ProjectedHeads, cache: Cache, lengths: Tensor) -> Cache:
        own, filled = _Heads(*heads), super().fill_attention(heads, cache, lengths)
        _, turned = describe_keys(self, self._window, own.query, own.window_key)
        near = {PART: cache[WINDOW]}
        near = fill_cache(self.plan_heads(self._window), near, turned, own.window_value, [None], lengths)
        keys = self._key_pooling.after_prompt(cache[KEYS], own.compressed_key, lengths)
        values = self._value_pooling.after_prompt(cache[VALUES], own.compressed_value, lengths)
        return {**filled, WINDOW: near[PART], KEYS: keys, VALUES: values}

    def decode_attention(self, heads: ProjectedHeads, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        own = _Heads(*heads)
        kept = ops.logical_and(index >= 0, index < shape(cache[PART]["key"])[2])[:, None]
        keys = self._key_pooling.after_next(cache[KEYS], own.compressed_key, index, kept)
        values = self._value_pooling.after_next(cache[VALUES], own.compressed_value, index, kept)
        compressed, chosen = self._decode_compressed(own.query, keys["block"], values["block"], index)
        options, groups = self.attention_options(causal=True), [(None, None)]

        def attend(pattern, entry, key, value, known):
            (query, key), plans = self.score_inputs(own.query, key), self.plan_heads(pattern)
            output, cached = decode_pattern(plans, {PART: entry}, query, key, value, groups, index, options, known)
            return Attended(output), cached[PART]

        known = {0: choices_by_name([block[..., 0] for block in chosen])}
        selected, entry = attend(self._pattern, cache[PART], own.key, own.value, known)
        near, window = attend(self._window, cache[WINDOW], own.window_key, own.window_value, {})
        after = {PART: entry, WINDOW: window, KEYS: keys, VALUES: values}
        return _gated(own.gates, compressed, selected, near), {**cache, **after}

    def _decode_compressed(self, query, key, value, index):
        """Returns attention of the token at `index` (B,) to compressed blocks, and the blocks that it chose."""
        query, _ = self.score_inputs(query, key)
        blocks = ops.arange(shape(key)[2], dtype="int32")
        seen, allowed = (
            (blocks < (end // self.block_size)[:, None])[:, None, None] for end in (index + 1, index)
        )  # (B, 1, 1, G)
        options = self._compressed_options()
        chosen = select_blocks_by_weight(query, key, seen, allowed, self.num_blocks - 1, options)
        return attend_compressed_blocks(query, key, value, seen, **options), chosen

    def get_config(self) -> Config:
        names = ("block_size", "num_blocks", "window")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _gated(gates, *parts):
    """Returns the sum of the outputs of parts, each times its gate of (B, N, T, 3)."""
    return sum(gates[..., i : i + 1] * part.output for i, part in enumerate(parts))
