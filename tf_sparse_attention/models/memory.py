"""What a model remembers of the segments of a text before the one it reads."""

from keras import ops

from tf_sparse_attention.layers.memory import latest
from tf_sparse_attention.ops.blocks import shape

EMPTY = -1  # the document of a place of the memory that holds nothing yet


def check_blocks(blocks, memory_length):
    """Raises a `ValueError` if a memory is wanted and the attention of a block has no place for one."""
    if memory_length and not all(block.attention.supports_memory for block in blocks):
        raise ValueError(
            "`memory_length` must be 0 unless all parts of `attention` go by distance (LocalAttention, AllAttention). "
            f"Received: memory_length={memory_length}."
        )


def empty_memory(backbone, batch_size, masked=True):
    """Returns a memory that holds nothing; see `Backbone.init_memory`.

    Raises:
        ValueError: for a backbone without memory.
    """
    length = backbone.memory_length
    if length == 0:
        raise ValueError("`memory_length` of the backbone must be positive to read on. Received: memory_length=0.")
    memory = {"segment_ids": ops.full((batch_size, length), EMPTY if masked else 0, dtype="int32")}
    for block in backbone.blocks:
        memory[block.name] = ops.zeros((batch_size, length, backbone.hidden_dim), dtype=backbone.compute_dtype)
    return memory


def of_last_document(segment_ids):
    """Returns which places of a memory hold the document that was read last, bool (B, L): none where all are empty."""
    held = segment_ids != EMPTY
    places = ops.where(held, ops.arange(segment_ids.shape[1], dtype="int32"), 0)
    last = ops.take_along_axis(segment_ids, ops.max(places, axis=1, keepdims=True), axis=1)
    return ops.logical_and(held, segment_ids == last)


class NewMemory:
    """The memory of a call: what the blocks read of the one before, and what the next call will read.

    Args:
        before: the memory, as `empty_memory` describes it.
        token_ids: int (B, T).
        padding_mask: bool (B, T), or None. Padding is remembered as nothing.
        segment_ids: int (B, T), or None: all one document.
    """

    def __init__(self, before, token_ids, padding_mask, segment_ids):
        self._before = before
        own = ops.zeros_like(token_ids, dtype="int32") if segment_ids is None else ops.cast(segment_ids, "int32")
        if padding_mask is not None:
            own = ops.where(padding_mask, own, EMPTY)
        self._after = {"segment_ids": _later(before["segment_ids"], own)}

    def of_block(self, block, x):
        """Returns what a block reads, and keeps its inputs for the next segment."""
        memory = self._before[block.name]
        self._after[block.name] = ops.stop_gradient(_later(memory, ops.cast(x, memory.dtype)))
        return {"memory": memory, "memory_segment_ids": self._before["segment_ids"]}

    def finished(self):
        """Returns the memory after the call."""
        return self._after


def _later(memory, new):
    """Returns the last L positions of a memory (B, L, ...) with a segment (B, T, ...) after it."""
    length, added = memory.shape[1], shape(new)[1]
    if isinstance(added, int) and added >= length:
        return latest(new, length)
    return latest(ops.concatenate([memory, new], axis=1), length)
