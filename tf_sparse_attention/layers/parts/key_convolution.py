"""A convolution over keys as a part of an attention layer, in whole sequences and token by token."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.causal_convolution import convolve_keys, convolve_next
from tf_sparse_attention.ops.gather import take_positions
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.ring_buffer import ring_positions, write_slot
from tf_sparse_attention.types import Size, Tensor


class KeyConvolution(keras.layers.Layer):
    """A short causal convolution over the keys of each head, see `ops.key_convolution.convolve_keys`.

    Zeros at first, by which keys stay what they are. Decoding keeps the last K - 1 keys as they were projected.

    Args:
        size: K, positions of the kernel, with the key's own.
        num_heads: M, heads of keys.
        key_dim: H.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(self, size: int, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.kernel = self.add_weight(name="kernel", shape=(size, num_heads, key_dim), initializer="zeros")
        self.built = True

    def of_sequence(self, key: Tensor, masks: TokenMasks = TokenMasks()) -> Tensor:
        """Returns the keys (B, M, S, H) of a sequence with those before each in it, under `TokenMasks`."""
        return convolve_keys(key, ops.cast(self.kernel, self.compute_dtype), masks)

    def empty_cache(self, batch_size: Size) -> dict[str, Tensor]:
        """Returns what decoding keeps, "last_keys" (B, M, K - 1, H), before the first token."""
        _, heads, key_dim = self.kernel.shape
        return {"last_keys": ops.zeros((batch_size, heads, self.size - 1, key_dim), self.compute_dtype)}

    def after_prompt(self, cache: dict[str, Tensor], key: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Returns what is kept after a prompt of keys (B, M, T, H), of which `lengths` (B,) exist."""
        if self.size == 1:
            return cache
        positions = ring_positions(self.size - 1, lengths - 1)[:, None]  # (B, 1, K - 1)
        return {"last_keys": _existing(take_positions(key, positions), positions)}

    def of_next(self, cache: dict[str, Tensor], key: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the key (B, M, 1, H) of the token at `index` (B,) with those before it, and what is kept after it."""
        count, kept = self.size - 1, cache["last_keys"]
        if count == 0:
            return convolve_next(key, kept, ops.cast(self.kernel, self.compute_dtype)), cache
        positions = index[:, None] - 1 - ops.arange(count, dtype="int32")
        slots = ops.broadcast_to(((positions + count) % count)[:, None], (*shape(kept)[:2], count))
        before = _existing(take_positions(kept, slots), positions[:, None])
        after = write_slot(kept, key, (ops.maximum(index, 0) % count)[:, None], (index >= 0)[:, None])
        return convolve_next(key, before, ops.cast(self.kernel, self.compute_dtype)), {"last_keys": after}


def _existing(rows, positions):
    """Returns rows (B, M, K, H), zeros where their positions (B, 1, K) are negative."""
    return ops.where(positions[..., None] >= 0, rows, 0)
