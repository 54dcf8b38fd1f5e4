"""Native sparse attention (NSA)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads, head_plans
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.projections import clone_initializer
from tf_sparse_attention.ops.attend import Attended, Dropout, score_dtype
from tf_sparse_attention.ops.block_selection import BlockKeys
from tf_sparse_attention.ops.compressed_attention import (
    attend_compressed_blocks,
    select_blocks_by_weight,
    visible_blocks,
)
from tf_sparse_attention.ops.gather import take_positions, write_slots
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.shapes import in_range, shape, split
from tf_sparse_attention.patterns.engine.attention import attend_pattern, dense_pattern
from tf_sparse_attention.patterns.engine.decoding import extend_pattern
from tf_sparse_attention.patterns.engine.kv_cache import Cache, fill_cache, num_removable
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.selected_blocks import BlockSelection, GivenBlocks
from tf_sparse_attention.patterns.selection import GivenSelection, NewTokens, SelectionInputs, Selector
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config, Initializer, Shape, Size, Tensor

# Cache entries of the selected blocks, the window, and the compressed keys and values.
PART = "part_0"  # cache entry of a single pattern
SELECTED, WINDOW, COMPRESSED_KEY, COMPRESSED_VALUE = "part_0", "part_1", "compressed_key", "compressed_value"


class _Heads(NamedTuple):
    """Projected heads of the branches: selected blocks (`key`, `value`), window, and compressed blocks."""

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
    """Native sparse attention: a gated sum of attention to compressed blocks, selected blocks and a window.

    out_i = g_c C(i) + g_s S(i) + g_w W(i). The three branches share the queries. Each branch has its own keys, values
    and softmax. The gates are sigmoids of a projection of the query, per head. `pattern` is the union of S and W.

    - C attends to one compressed key and value per block that is complete at position i. The compressed key is
      W silu(sum_s A_s (x_s + p_s) + u), where x_s are the b keys of the block, p_s are learned position embeddings, and
      u is a bias. The compressed value is computed from the values in the same way. `position` does not apply to C.
    - S attends to the query's own block up to i, and to the `num_blocks` - 1 earlier blocks with the largest weights in
      C. The weights are summed over the query heads that share a key head, so these heads select the same blocks. The
      selection has no gradient.
    - W attends to the last `window` positions.

    S and W cost O(T (num_blocks b + window)), and C costs O(T^2 / b) in time and memory. The decoding cache holds the
    keys and values of all positions, of all blocks, and of the window. Each decoded token reads T / b blocks,
    num_blocks b positions, and the window.

    The layer is for causal self-attention only: call it with `use_causal_mask=True` and without `value`. In rows of
    packed documents, a block still has b positions. A block belongs to the document of its last token. The block's
    compressed key and value use only tokens of this document. Only queries of this document attend to the block or
    select it. Padding belongs to no block. A query attends to a compressed block only if `attention_mask` allows all
    keys of the block. Returned attention weights are the weights of S and W, multiplied by the gates.

    Source: Yuan et al. 2025, "Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention" (arXiv
    2502.11089).

    Note: differs from the paper in two ways. Blocks of C and S have the same size and do not overlap. Only the query's
    own block is always selected. The paper also always selects the first and the previous block.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: b, positions per block. Default 64.
        num_blocks: selected blocks per query, including the query's own block. Default 16.
        window: positions of W, including the query's own. Default 512.
        **kwargs: the other arguments of `AttentionLayer`. `position` applies only to S and W.

    Raises:
        ValueError: if an argument is invalid, or if the call is not causal self-attention.

    Example:
        >>> layer = NativeSparseAttention(num_heads=4, key_dim=16, block_size=16, num_blocks=4, window=32)
        >>> tuple(layer(keras.random.normal((2, 200, 64)), use_causal_mask=True).shape)
        (2, 200, 64)
    """

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
        self._selected, self._window = GivenBlocks(block_size, num_blocks), Window(window)
        self._pattern = self._selected | self._window
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.window = window

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)

        def make(name, num_heads, size):
            return projections.input_projection(self, name, query_shape, num_heads, size, self.use_bias, self._objects)

        def pooling(name, size):
            initializer = self._objects["kernel_initializer"]
            return BlockPooling(self.block_size, size, self.use_bias, initializer, name=name, dtype=self.dtype_policy)

        branches = ("window", "compressed")
        self._gates = make("branch_gate", self.num_heads, 3)
        self._keys = [make(f"{name}_key", self.num_key_heads, self.key_dim) for name in branches]
        self._values = [make(f"{name}_value", self.num_key_heads, self.value_dim) for name in branches]
        self._key_pooling = pooling("key_pooling", self.key_dim)
        self._value_pooling = pooling("value_pooling", self.value_dim)

    def make_selectors(self) -> list[Selector | None]:
        return [None, None]  # the compressed branch selects

    def copy_projections(self, attention: keras.layers.Layer, heads: slice = slice(None)) -> None:
        """Copy the projections of another layer. Every branch gets a copy of that layer's key and value projections."""
        super().copy_projections(attention, heads)
        for projection in self._keys:
            projection.set_weights(self._key.get_weights())  # type: ignore[union-attr]  # not None without `share_qk`
        for projection in self._values:
            projection.set_weights(self._value.get_weights())

    def project(self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> ProjectedHeads:
        """Project inputs to queries, gates, and the keys and values of each branch.

        Shapes: queries (B, N, T, H), gates (B, N, T, 3), keys (B, M, T, H), and values (B, M, T, Hv).
        """
        heads = super().project(query, value, key)
        keys = [self.project_heads(projection, query, norm="key") for projection in self._keys]
        values = [self.project_values(projection, query) for projection in self._values]
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
        projected = _Heads(*heads)
        dropout, options = Dropout.for_call(self.dropout, self._seeds, training), self.attention_options(training)
        compressed, blocks = self._attend_compressed(heads, masks, training)

        def attend(pattern, key, value, select=None):
            query, key = self.score_inputs(projected.query, key)
            return attend_pattern(
                pattern,
                query,
                key,
                value,
                causal,
                masks,
                select,
                dropout,
                return_weights=return_weights,
                options=options,
            )

        selected = attend(self._selected, projected.key, projected.value, lambda *_: [BlockSelection(blocks)])
        window = attend(self._window, projected.window_key, projected.window_value)
        gates, weights = projected.gates, None
        if return_weights:
            weights = gates[..., 1:2] * selected.weights + gates[..., 2:3] * window.weights
        return _gated_sum(gates, compressed, selected, window), weights

    def _attend_compressed(
        self, heads: ProjectedHeads, masks: TokenMasks, training: bool = False
    ) -> tuple[Attended, Tensor | None]:
        """Attend to compressed blocks, and select blocks by their weights."""
        projected = _Heads(*heads)
        key, value = projected.compressed_key, projected.compressed_value
        query, _ = self.score_inputs(projected.query, key)
        blocks = BlockKeys.from_masks(masks, shape(key)[2], self.block_size)
        key, value = (
            pooling.pool(pooling.sum_blocks(x, blocks.counted, blocks.num_blocks))
            for pooling, x in ((self._key_pooling, key), (self._value_pooling, value))
        )
        positions = ops.arange(shape(query)[2], dtype="int32")
        visible = visible_blocks(blocks, positions, masks.query_segments, masks.attention_mask)
        selectable = blocks.before(positions, masks.query_segments)
        dropout = Dropout.for_call(self.dropout, self._seeds, training)
        return self._attend_and_select(query, key, value, visible, selectable, dropout)

    def _attend_and_select(self, query, key, value, visible, selectable, dropout=None):
        """Attend to visible compressed blocks, and select those with the largest weights among selectable blocks."""
        options = self.attention_options()
        common = {"soft_cap": options.soft_cap, "sinks": options.sinks}
        blocks = select_blocks_by_weight(query, key, visible, selectable, self.num_blocks - 1, common)
        return attend_compressed_blocks(query, key, value, visible, dropout=dropout, **common), blocks

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        query, options = heads[0], self.attention_options()
        call = Call.from_inputs(self._selected, query, query, causal, masks)
        _, blocks = self._attend_compressed(heads, masks)
        selected = dense_pattern(self._selected, call, query.shape[1], masks, [BlockSelection(blocks)], options)
        return ops.logical_or(selected, dense_pattern(self._window, call, query.shape[1], masks, None, options))

    def init_extra_entries(self, cache: Cache, batch_size: Size, rewind: int) -> Cache:
        sizes = batch_size, self.num_key_heads, shape(cache[SELECTED]["key"])[2] // self.block_size, rewind
        return {
            COMPRESSED_KEY: self._key_pooling.empty_cache(*sizes),
            COMPRESSED_VALUE: self._value_pooling.empty_cache(*sizes),
        }

    def fill_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> Cache:
        projected = _Heads(*heads)

        def fill(pattern, entry, key, value):
            query, scaled_key = self.score_inputs(projected.query, key)
            position, at = self.position_encoding, tokens.positions[:, None]
            inputs = SelectionInputs(projected.query, key, position.rotate(query, at), position.rotate(scaled_key, at))
            plans = head_plans(self, pattern)
            return fill_cache(plans, {PART: entry}, value, [None], inputs, tokens)[PART]

        return {
            **cache,
            SELECTED: fill(self._selected, cache[SELECTED], projected.key, projected.value),
            WINDOW: fill(self._window, cache[WINDOW], projected.window_key, projected.window_value),
            **self._extend_compressed(projected, cache, tokens),
        }

    def _extend_compressed(self, projected: _Heads, cache: Cache, tokens: NewTokens) -> Cache:
        """Return the cache entries of the compressed keys and values after new tokens."""
        return {
            COMPRESSED_KEY: self._key_pooling.extend_cache(cache[COMPRESSED_KEY], projected.compressed_key, tokens),
            COMPRESSED_VALUE: self._value_pooling.extend_cache(
                cache[COMPRESSED_VALUE], projected.compressed_value, tokens
            ),
        }

    def extend_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> tuple[Tensor, Cache]:
        projected, options = _Heads(*heads), self.attention_options()
        updated = self._extend_compressed(projected, cache, tokens)
        query, _ = self.score_inputs(projected.query, projected.key)
        key, value = (updated[name]["block"] for name in (COMPRESSED_KEY, COMPRESSED_VALUE))
        blocks = ops.arange(shape(key)[2], dtype="int32")
        visible, selectable = (
            (blocks < (ends // self.block_size)[:, :, None])[:, None]
            for ends in (tokens.positions + 1, tokens.positions)
        )  # (B, 1, q, G)
        compressed, selected_blocks = self._attend_and_select(query, key, value, visible, selectable)

        def attend(pattern, name, key, value, selector):
            (query, key), plans = self.score_inputs(projected.query, key), head_plans(self, pattern)
            rows = {PART: cache[name]}, query, key, value, [selector], (query, key)
            output, cached = extend_pattern(plans, *rows, tokens, options)
            updated[name] = cached[PART]
            return Attended(output)

        selector = GivenSelection(BlockSelection(selected_blocks))
        selected = attend(self._selected, SELECTED, projected.key, projected.value, selector)
        window = attend(self._window, WINDOW, projected.window_key, projected.window_value, None)
        return _gated_sum(projected.gates, compressed, selected, window), {**cache, **updated}

    def removable_tokens(self, cache: Cache, longest: Tensor) -> list[Tensor]:
        recent = cache[COMPRESSED_KEY].get("recent")
        own = ops.zeros_like(longest) if recent is None else num_removable(longest, shape(recent)[2], self.block_size)
        return [*super().removable_tokens(cache, longest), own]

    def rewind_attention(self, cache: Cache, lengths: Tensor) -> Cache:
        rewound = super().rewind_attention(cache, lengths)
        pooled = {COMPRESSED_KEY: self._key_pooling, COMPRESSED_VALUE: self._value_pooling}
        return {**rewound, **{name: pooling.rewind_cache(cache[name], lengths) for name, pooling in pooled.items()}}

    def get_config(self) -> Config:
        names = ("block_size", "num_blocks", "window")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _gated_sum(gates, *branches):
    """Return the sum of the outputs of branches, multiplied by their gates (B, N, T, 3)."""
    return sum(gates[..., i : i + 1] * branch.output for i, branch in enumerate(branches))


class BlockPooling(keras.layers.Layer):
    """Learned pooling of the b vectors x_s of a block: W silu(sum_s A_s (x_s + p_s) + u), in O(T H^2) per head.

    The heads share the weights. The sum skips masked vectors.

    Args:
        block_size: b.
        size: H, channels.
        use_bias: whether there is a bias u.
        kernel_initializer: initializer of A, W and the position embeddings p.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self, block_size: int, size: int, use_bias: bool, kernel_initializer: Initializer, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.block_size = block_size

        def make(name, *sizes):
            return self.add_weight(name=name, shape=sizes, initializer=clone_initializer(kernel_initializer))

        self.position = make("position", block_size, size)
        self.inner_kernel = make("inner_kernel", block_size, size, size)
        self.outer_kernel = make("outer_kernel", size, size)
        self.inner_bias = self.add_weight(name="inner_bias", shape=(size,), initializer="zeros") if use_bias else None
        self.built = True

    def sum_blocks(self, x: Tensor, counted: Tensor | None, num_blocks: Size) -> Tensor:
        """Sum the vectors (B, M, T, H) of each block where `counted` (B, G, b) is True: (B, M, G, H)."""
        position, kernel = (ops.cast(weight, self.compute_dtype) for weight in (self.position, self.inner_kernel))
        blocks = split(x, self.block_size, -2, num_blocks) + position  # (B, M, G, b, H)
        if counted is not None:
            blocks = ops.where(counted[:, None, ..., None], blocks, 0)
        batch, heads, _, _, size = shape(blocks)
        flat = ops.reshape(blocks, (batch, heads, num_blocks, self.block_size * size))
        return ops.matmul(flat, ops.reshape(kernel, (self.block_size * size, size)))

    def pool(self, sums: Tensor) -> Tensor:
        """Compute the pooled vectors (..., H) from the sums of blocks."""
        inner = sums if self.inner_bias is None else sums + ops.cast(self.inner_bias, self.compute_dtype)
        return ops.matmul(ops.silu(inner), ops.cast(self.outer_kernel, self.compute_dtype))

    def empty_cache(self, batch_size: Size, num_heads: int, num_blocks: Size, rewind: int) -> dict[str, Tensor]:
        """Create an empty cache.

        Returns:
            "block": pooled vectors (B, M, G, H), and "sum": the sum of the incomplete block, float32 or float64 (B, M,
            1, H). With `rewind`, also "recent": the last b + rewind vectors (B, M, b + rewind, H), position p in
            slot p mod (b + rewind).
        """
        size = self.outer_kernel.shape[0]
        block = ops.zeros((batch_size, num_heads, num_blocks, size), self.compute_dtype)
        cache = {"block": block, "sum": ops.zeros((batch_size, num_heads, 1, size), score_dtype(self.compute_dtype))}
        if rewind:
            sizes = batch_size, num_heads, self.block_size + rewind, size
            cache["recent"] = ops.zeros(sizes, self.compute_dtype)
        return cache

    def extend_cache(self, cache: dict[str, Tensor], x: Tensor, tokens: NewTokens) -> dict[str, Tensor]:
        """Return the cache after the vectors (B, M, q, H) of new tokens.

        The pooled vector of an incomplete block is preliminary. No query attends to it.
        """
        updated = (self._add_one if tokens.length == 1 else self._add_several)(cache, x, tokens)
        if "recent" in cache:
            updated["recent"] = tokens.write_ring(cache["recent"], x)
        return updated

    def _add_several(self, cache: dict[str, Tensor], x: Tensor, tokens: NewTokens) -> dict[str, Tensor]:
        """Return the cache after the vectors (B, M, q, H) of several tokens per row."""
        size, num_blocks, (batch, _, length, _) = self.block_size, shape(cache["block"])[2], shape(x)
        shift, first_block = tokens.start % size, tokens.start // size
        count = (length - 1 + size - 1) // size + 1  # blocks that may have new tokens
        at = ops.arange(count * size, dtype="int32") - shift[:, None]
        is_new = ops.logical_and(at >= 0, at < tokens.counts[:, None])
        sums = self.sum_blocks(take_positions(x, at[:, None]), ops.reshape(is_new, (batch, count, size)), count)
        sums = ops.cast(sums, cache["sum"].dtype)
        partial = ops.where((shift > 0)[:, None, None, None], cache["sum"], 0)  # of the first block
        sums = ops.concatenate([sums[:, :, :1] + partial, sums[:, :, 1:]], axis=2)
        numbers = (ops.arange(num_blocks, dtype="int32") - first_block[:, None])[:, None]  # (B, 1, G)
        last = ((tokens.start + tokens.counts - 1) // size - first_block)[:, None, None]
        is_changed = ops.logical_and(numbers >= 0, numbers <= last)
        is_changed = ops.logical_and(is_changed, (tokens.counts > 0)[:, None, None])
        pooled = take_positions(self.pool(ops.cast(sums, self.compute_dtype)), numbers)
        total = ops.where((tokens.counts > 0)[:, None, None, None], take_positions(sums, last), cache["sum"])
        return {"block": ops.where(is_changed[..., None], pooled, cache["block"]), "sum": total}

    def _add_one(self, cache: dict[str, Tensor], x: Tensor, tokens: NewTokens) -> dict[str, Tensor]:
        """Return the cache after the vector (B, M, 1, H) of one token per row."""
        index, exists = tokens.start, tokens.exists
        at = in_range(index % self.block_size, self.block_size)
        position, kernel = (
            ops.cast(ops.take(weight, at, axis=0), self.compute_dtype) for weight in (self.position, self.inner_kernel)
        )
        new = ops.matmul(x + position[:, None, None], kernel[:, None])  # (B, M, 1, H)
        total = ops.where((at > 0)[:, None, None, None], cache["sum"], 0) + ops.cast(new, cache["sum"].dtype)
        total = ops.where(exists[..., None, None], total, cache["sum"])
        block = (index // self.block_size)[:, None, None]
        new = self.pool(ops.cast(total, self.compute_dtype))
        return {"block": write_slots(cache["block"], new, block, exists[:, None]), "sum": total}

    def rewind_cache(self, cache: dict[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        """Return the cache without the tokens from position `lengths` (B,) on."""
        if "recent" not in cache:  # no token can be removed
            return cache
        size, slots = self.block_size, shape(cache["recent"])[2]
        positions = (lengths // size * size)[:, None] + ops.arange(size, dtype="int32")
        block = take_positions(cache["recent"], (positions % slots)[:, None])
        total = self.sum_blocks(block, (positions < lengths[:, None])[:, None], 1)
        return {**cache, "sum": ops.cast(total, cache["sum"].dtype)}
