"""Block-selected attention (MoBA)."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads
from tf_sparse_attention.ops.block_selection import convolve_keys
from tf_sparse_attention.ops.gather import take_positions
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.shapes import shape, slice_axis
from tf_sparse_attention.patterns.engine.kv_cache import Cache, num_removable
from tf_sparse_attention.patterns.selected_blocks import SelectedBlocks
from tf_sparse_attention.patterns.selection import NewTokens
from tf_sparse_attention.types import Config, Shape, Size, Tensor

CONVOLUTION = "convolution"  # cache entry


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class BlockSelectedAttention(AttentionLayer):
    """Block-selected attention: each query attends to its own block and to the highest-scoring earlier blocks.

    The score of a block is q . mean(k). `tsa.patterns.SelectedBlocks` defines the selection, including padding and
    packed documents. The softmax is over q . k / sqrt(key_dim). Attention costs O(T num_blocks block_size), and the
    selection O(T^2 / block_size). Blocks have no capacity limit: any number of queries can select the same block.

    The layer is for causal self-attention only: call it with `use_causal_mask=True` and without `value`.

    `key_convolution` = K replaces key k_i with k_i + silu(sum_l w_l k_{i-l}) for 0 <= l < K, per channel, before rotary
    positions. Block means and attention scores use these keys. Blocks with relevant keys then score higher. The
    convolution ignores padding and does not cross documents. The convolution kernel is initialized to zero, so keys are
    initially unchanged.

    Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs" (arXiv 2502.13189). The convolution
    is from Xiao et al. 2025, "Optimizing Mixture of Block Attention" (arXiv 2511.11571).

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: positions per block. Default 128.
        num_blocks: blocks per query, including the query's own block. Default 3.
        key_convolution: K, kernel size of the causal convolution, 3 to 5 in the paper. None: no convolution.
        use_shared_choice: whether query heads that share a key head (`num_key_value_heads`) select the same blocks, by
            the sum of their scores. Default False: each query head selects separately.
        choice_chunk_size: queries per selection step. The chunk size limits the block scores in memory to
            (chunk size) x (T / block_size) per head. None: process all queries at once, which is faster.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: if an argument is invalid, or the call is not causal self-attention.

    Example:
        >>> layer = BlockSelectedAttention(num_heads=4, key_dim=16, block_size=64, position="rotary")
        >>> tuple(layer(keras.random.normal((2, 1000, 64)), use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        block_size: int = 128,
        num_blocks: int = 3,
        key_convolution: int | None = None,
        use_shared_choice: bool = False,
        choice_chunk_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_optional_count("key_convolution", key_convolution)
        self._pattern = SelectedBlocks(block_size, num_blocks, use_shared_choice, choice_chunk_size)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.key_convolution = key_convolution
        self.use_shared_choice = use_shared_choice
        self.choice_chunk_size = choice_chunk_size

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self._convolution = None
        if self.key_convolution is not None:
            sizes = self.key_convolution, self.num_key_heads, self.key_dim
            self._convolution = KeyConvolution(*sizes, name="key_convolution", dtype=self.dtype_policy)

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        return super().compute_attention(self._convolve(heads, masks), masks, causal, training, return_weights)

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        return super().dense_mask(self._convolve(heads, masks), masks, causal)

    def _convolve(self, heads: ProjectedHeads, masks: TokenMasks) -> ProjectedHeads:
        """Apply the key convolution, if any, to projected heads."""
        query, key, value = heads
        return heads if self._convolution is None else (query, self._convolution.convolve(key, masks), value)

    def init_extra_entries(self, cache: Cache, batch_size: Size, rewind: int) -> Cache:
        return {} if self._convolution is None else {CONVOLUTION: self._convolution.empty_cache(batch_size, rewind)}

    def removable_tokens(self, cache: Cache, longest: Tensor) -> list[Tensor]:
        limits, count = super().removable_tokens(cache, longest), (self.key_convolution or 1) - 1
        if count:
            limits.append(num_removable(longest, shape(cache[CONVOLUTION]["last_keys"])[2], count))
        return limits

    def fill_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> Cache:
        heads, updated = self._convolve_new(heads, cache, tokens)
        return {**super().fill_attention(heads, cache, tokens), **updated}

    def extend_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> tuple[Tensor, Cache]:
        heads, updated = self._convolve_new(heads, cache, tokens)
        output, cache = super().extend_attention(heads, cache, tokens)
        return output, {**cache, **updated}

    def _convolve_new(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> tuple[ProjectedHeads, Cache]:
        """Apply the key convolution, if any, to new tokens. Returns the heads and the changed cache entries."""
        if self._convolution is None:
            return heads, {}
        query, key, value = heads
        key, last_keys = self._convolution.extend(cache[CONVOLUTION], key, tokens)
        return (query, key, value), {CONVOLUTION: last_keys}

    def get_config(self) -> Config:
        names = ("block_size", "num_blocks", "key_convolution", "use_shared_choice", "choice_chunk_size")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


class KeyConvolution(keras.layers.Layer):
    """Short causal convolution over the keys of each head, see `ops.block_selection.convolve_keys`.

    Decoding caches the last K - 1 projected keys.

    Args:
        size: K, kernel size, including the key's own position.
        num_heads: M, number of key heads.
        key_dim: H.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(self, size: int, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.kernel = self.add_weight(name="kernel", shape=(size, num_heads, key_dim), initializer="zeros")
        self.built = True

    def convolve(self, key: Tensor, masks: TokenMasks) -> Tensor:
        """Convolve the keys (B, M, S, H) of a sequence."""
        return convolve_keys(key, ops.cast(self.kernel, self.compute_dtype), masks)

    def empty_cache(self, batch_size: Size, rewind: int) -> dict[str, Tensor]:
        """Create an empty cache: "last_keys" (B, M, K - 1 + rewind, H), position p in slot p mod the number of
        slots."""
        _, heads, key_dim = self.kernel.shape
        slots = 0 if self.size == 1 else self.size - 1 + rewind
        return {"last_keys": ops.zeros((batch_size, heads, slots, key_dim), self.compute_dtype)}

    def extend(self, cache: dict[str, Tensor], key: Tensor, tokens: NewTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Convolve the keys (B, M, q, H) of new tokens, and update the cache."""
        count, kernel = self.size - 1, ops.cast(self.kernel, self.compute_dtype)
        if count == 0:
            return convolve_keys(key, kernel), cache
        last_keys, slots = cache["last_keys"], shape(cache["last_keys"])[2]
        positions = tokens.start[:, None] - count + ops.arange(count, dtype="int32")
        before = take_positions(last_keys, ((positions + slots) % slots)[:, None])
        before = ops.where(positions[:, None, :, None] >= 0, before, 0)
        keys = ops.concatenate([ops.cast(before, key.dtype), key], axis=2)
        convolved = slice_axis(convolve_keys(keys, kernel), -2, count, count + shape(key)[2])
        return convolved, {"last_keys": tokens.write_ring(last_keys, key)}
