"""Block-selected attention (MoBA)."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads
from tf_sparse_attention.ops.block_selection import convolve_keys, convolve_next
from tf_sparse_attention.ops.gather import ring_positions, take_positions, write_slot
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.engine.kv_cache import Cache
from tf_sparse_attention.patterns.selected_blocks import SelectedBlocks
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

    def init_cache(self, batch_size: Size, *args: Any, **kwargs: Any) -> Cache:
        cache = super().init_cache(batch_size, *args, **kwargs)
        return cache if self._convolution is None else {**cache, CONVOLUTION: self._convolution.empty_cache(batch_size)}

    def fill_attention(self, heads: ProjectedHeads, cache: Cache, lengths: Tensor) -> Cache:
        # Without masks: padding is on the right, so the convolution of a token's key does not reach it.
        filled = super().fill_attention(self._convolve(heads, TokenMasks()), cache, lengths)
        if self._convolution is None:
            return filled
        return {**filled, CONVOLUTION: self._convolution.after_prompt(cache[CONVOLUTION], heads[1], lengths)}

    def decode_attention(self, heads: ProjectedHeads, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        if self._convolution is None:
            return super().decode_attention(heads, cache, index)
        query, key, value = heads
        key, last_keys = self._convolution.convolve_next(cache[CONVOLUTION], key, index)
        output, cache = super().decode_attention((query, key, value), cache, index)
        return output, {**cache, CONVOLUTION: last_keys}

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

    def empty_cache(self, batch_size: Size) -> dict[str, Tensor]:
        """Create an empty cache: "last_keys" (B, M, K - 1, H)."""
        _, heads, key_dim = self.kernel.shape
        return {"last_keys": ops.zeros((batch_size, heads, self.size - 1, key_dim), self.compute_dtype)}

    def after_prompt(self, cache: dict[str, Tensor], key: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return the cache after a prompt with keys (B, M, T, H) and `lengths` (B,) tokens per row."""
        if self.size == 1:
            return cache
        positions = ring_positions(self.size - 1, lengths - 1)[:, None]  # (B, 1, K - 1)
        return {"last_keys": _zero_missing(take_positions(key, positions), positions)}

    def convolve_next(self, cache: dict[str, Tensor], key: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Convolve the key (B, M, 1, H) of the token at `index` (B,), and update the cache."""
        count, last_keys = self.size - 1, cache["last_keys"]
        if count == 0:
            return convolve_next(key, last_keys, ops.cast(self.kernel, self.compute_dtype)), cache
        positions = index[:, None] - 1 - ops.arange(count, dtype="int32")
        slots = ops.broadcast_to(((positions + count) % count)[:, None], (*shape(last_keys)[:2], count))
        before = _zero_missing(take_positions(last_keys, slots), positions[:, None])
        after = write_slot(last_keys, key, (ops.maximum(index, 0) % count)[:, None], (index >= 0)[:, None])
        return convolve_next(key, before, ops.cast(self.kernel, self.compute_dtype)), {"last_keys": after}


def _zero_missing(rows, positions):
    """Set rows (B, M, K, H) to zero where `positions` (B, 1, K) are negative."""
    return ops.where(positions[..., None] >= 0, rows, 0)
