"""A learned pooling of blocks of keys or values, in whole sequences and token by token."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.layers.parts.projections import clone_initializer
from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.blocks import in_range, shape, split
from tf_sparse_attention.ops.gather import take_rows
from tf_sparse_attention.ops.ring_buffer import write_slot
from tf_sparse_attention.types import Initializer, Size, Tensor


class BlockPooling(keras.layers.Layer):
    """Makes one vector of the b vectors of a block: W silu(sum_s A_s (x_s + p_s) + c), s the position in the block.

    The same for all heads. Vectors that do not count are left out of the sum. O(T H^2) for each head.

    Args:
        block_size: b.
        size: H, channels.
        use_bias: whether there is a bias c.
        kernel_initializer: of A, W and the positions p.
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

    def sums(self, x: Tensor, counted: Tensor | None, num_blocks: Size) -> Tensor:
        """Returns the sum over each block, (B, M, G, H), of vectors (B, M, T, H) that are `counted`, bool (B, G, b)."""
        position, kernel = (ops.cast(weight, self.compute_dtype) for weight in (self.position, self.inner_kernel))
        blocks = split(x, self.block_size, -2, num_blocks) + position  # (B, M, G, b, H)
        if counted is not None:
            blocks = ops.where(counted[:, None, ..., None], blocks, 0)
        batch, heads, _, _, size = shape(blocks)
        flat = ops.reshape(blocks, (batch, heads, num_blocks, self.block_size * size))
        return ops.matmul(flat, ops.reshape(kernel, (self.block_size * size, size)))

    def of_sums(self, sums: Tensor) -> Tensor:
        """Returns the vectors of blocks, (..., H), of their sums."""
        inner = sums if self.inner_bias is None else sums + ops.cast(self.inner_bias, self.compute_dtype)
        return ops.matmul(ops.silu(inner), ops.cast(self.outer_kernel, self.compute_dtype))

    def empty_cache(self, batch_size: Size, num_heads: int, num_blocks: Size) -> dict[str, Tensor]:
        """Returns "block" (B, M, G, H) and "sum" (B, M, 1, H), not in half precision, of the block not yet complete."""
        size = self.outer_kernel.shape[0]
        block = ops.zeros((batch_size, num_heads, num_blocks, size), self.compute_dtype)
        return {"block": block, "sum": ops.zeros((batch_size, num_heads, 1, size), score_dtype(self.compute_dtype))}

    def after_prompt(self, cache: dict[str, Tensor], x: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Returns the cache after a prompt of vectors (B, M, T, H), of which `lengths` (B,) exist."""
        num_blocks = shape(cache["block"])[2]
        exists = ops.arange(num_blocks * self.block_size, dtype="int32") < lengths[:, None]
        counted = ops.reshape(exists, (-1, num_blocks, self.block_size))
        sums = self.sums(x, counted, num_blocks)
        last = in_range((lengths - 1) // self.block_size, num_blocks)[:, None, None]
        last = ops.broadcast_to(last, (*shape(x)[:2], 1))
        return {"block": self.of_sums(sums), "sum": ops.cast(take_rows(sums, last), cache["sum"].dtype)}

    def after_next(self, cache: dict[str, Tensor], x: Tensor, index: Tensor, kept: Tensor | None) -> dict[str, Tensor]:
        """Returns the cache after a vector (B, M, 1, H) at `index` (B,), as it was in rows that are not `kept` (B, 1).

        The vector of a block that is not complete is not yet its own; no query sees it.
        """
        at = in_range(index % self.block_size, self.block_size)
        position, kernel = (
            ops.cast(ops.take(weight, at, axis=0), self.compute_dtype) for weight in (self.position, self.inner_kernel)
        )
        new = ops.matmul(x + position[:, None, None], kernel[:, None])  # (B, M, 1, H)
        total = ops.where((at > 0)[:, None, None, None], cache["sum"], 0) + ops.cast(new, cache["sum"].dtype)
        if kept is not None:
            total = ops.where(kept[..., None, None], total, cache["sum"])
        block = in_range(index // self.block_size, shape(cache["block"])[2])[:, None]
        new = self.of_sums(ops.cast(total, self.compute_dtype))
        return {"block": write_slot(cache["block"], new, block, kept), "sum": total}
