"""Segment memory: block inputs of earlier segments as additional keys (Transformer-XL, Dai et al. 2019)."""

from collections.abc import Sequence

import keras
from keras import ops

from tf_sparse_attention.layers.parts.segment_memory import latest, supports_memory
from tf_sparse_attention.ops.shapes import max_over, shape
from tf_sparse_attention.types import Tensor

EMPTY = -1  # segment id of empty slots


def check_blocks(blocks: Sequence[keras.layers.Layer], memory_length: int) -> None:
    """Raise a `ValueError` if `memory_length` is positive and the attention of a block does not support memory."""
    if memory_length and not all(supports_memory(block.attention) for block in blocks):
        raise ValueError(
            "`memory_length` must be 0 unless all parts of `attention` support a segment memory (LocalAttention, "
            f"AllAttention). Received: memory_length={memory_length}."
        )


def empty_memory(backbone: keras.Model, batch_size: int | Tensor, masked: bool = True) -> dict[str, Tensor]:
    """Create an empty segment memory; see `Backbone.init_memory`.

    Raises:
        ValueError: if `memory_length` of the backbone is 0.
    """
    length = backbone.memory_length
    if length == 0:
        raise ValueError(
            "`memory_length` of the backbone must be positive for a segment memory. Received: memory_length=0."
        )
    memory = {"segment_ids": ops.full((batch_size, length), EMPTY if masked else 0, dtype="int32")}
    for block in backbone.blocks:
        memory[block.name] = ops.zeros((batch_size, length, backbone.hidden_dim), dtype=backbone.compute_dtype)
    return memory


def in_last_document(segment_ids: Tensor) -> Tensor:
    """Return which slots of a memory hold the latest document, bool (B, L); False for empty slots."""
    filled = segment_ids != EMPTY
    slots = ops.where(filled, ops.arange(segment_ids.shape[1], dtype="int32"), 0)
    last = ops.take_along_axis(segment_ids, max_over(slots, axis=1, keepdims=True), axis=1)
    return ops.logical_and(filled, segment_ids == last)


class SegmentMemory:
    """Segment memory of a call: the memory before the call, and the new memory.

    Args:
        before: memory before the call, such as from `empty_memory`.
        tokens: token ids (B, T), or features (B, T, F).
        padding_mask: bool (B, T), or None. Slots of padding are empty.
        segment_ids: int (B, T). None: one document, id 0.
    """

    def __init__(
        self, before: dict[str, Tensor], tokens: Tensor, padding_mask: Tensor | None, segment_ids: Tensor | None
    ) -> None:
        self._before = before
        documents = ops.zeros(shape(tokens)[:2], "int32") if segment_ids is None else ops.cast(segment_ids, "int32")
        if padding_mask is not None:
            documents = ops.where(padding_mask, documents, EMPTY)
        self._after = {"segment_ids": _append(before["segment_ids"], documents)}

    def update_block(self, block: keras.layers.Layer, x: Tensor) -> dict[str, Tensor]:
        """Return the memory arguments of a block, and store the inputs `x` of the block for the next segment."""
        memory = self._before[block.name]
        self._after[block.name] = ops.stop_gradient(_append(memory, ops.cast(x, memory.dtype)))
        return {"memory": memory, "memory_segment_ids": self._before["segment_ids"]}

    def after(self) -> dict[str, Tensor]:
        """Return the new memory."""
        return self._after


def _append(memory, new):
    """Return the last L positions of a memory (B, L, ...) followed by a segment (B, T, ...)."""
    length, added = memory.shape[1], shape(new)[1]
    if isinstance(added, int) and added >= length:
        return latest(new, length)
    return latest(ops.concatenate([memory, new], axis=1), length)
