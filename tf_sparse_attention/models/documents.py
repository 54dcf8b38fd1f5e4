"""Positions and first tokens of the documents in packed rows."""

import keras
from keras import ops

from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Tensor


def token_positions(is_token: Tensor, starts: Tensor | None = None) -> Tensor:
    """Return the position of each token in its document, from 1, and 0 for padding: int32 (B, T).

    Args:
        is_token: bool (B, T), False for padding.
        starts: result of `ops.masks.document_starts`. None: a row is one document.
    """
    is_token = ops.cast(is_token, "int32")
    counts = ops.cumsum(is_token, axis=1)
    if starts is not None:
        counts = counts - ops.take_along_axis(counts - is_token, starts, axis=1)
    return counts * is_token


def mark_first_tokens(block: keras.layers.Layer, global_mask: Tensor | None, starts: Tensor) -> Tensor | None:
    """Add the first tokens of each document to a global mask: int (B, T), or None if no token is global.

    Attention layers mark only the first tokens of a row, not the first tokens of later documents.

    Args:
        block: a `TransformerBlock`.
        global_mask: bool or int (B, T), or None.
        starts: result of `ops.masks.document_starts`.

    Raises:
        ValueError: if parts of the block differ in `num_first_global`.
    """
    parts = getattr(block.attention, "parts", [block.attention])
    counts = {getattr(part, "num_first_global", 0) for part in parts if "global_mask" in part.extra_mask_names}
    if len(counts) > 1:
        raise ValueError(
            "`segment_ids` must be None unless all parts with global tokens have the same `num_first_global`. "
            f"Received: segment_ids, and parts of {block.name} with num_first_global {sorted(counts)}."
        )
    if not any(counts):
        return global_mask
    first = ops.cast(ops.arange(shape(starts)[1], dtype="int32") - starts < counts.pop(), "int32")
    return first if global_mask is None else ops.maximum(first, ops.cast(global_mask, "int32"))
