"""Transformer-XL segment memory: keys from earlier segments."""

import keras
from keras import ops

from tf_sparse_attention.checks import check_static
from tf_sparse_attention.layers.parts.call_inputs import as_integers, as_tensor, token_mask, zero_padding
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Size, Tensor


def add_memory(
    layer: keras.layers.Layer,
    masks: TokenMasks,
    query: Tensor,
    value: Tensor | None,
    memory: Tensor,
    memory_segment_ids: Tensor | None,
) -> tuple[TokenMasks, Tensor | None]:
    """Add a segment memory to the masks and the value of a call.

    Args:
        layer: the attention layer.
        masks: the `TokenMasks` of the call without memory.
        query: float (B, T, D).
        value: the value of the call.
        memory: float (B, L, D).
        memory_segment_ids: int (B, L), the document of each position. Tokens attend to the memory of their document,
            which is 0 in a call without segment ids. None: all positions are visible.

    Returns:
        Pair of masks and value.

    Raises:
        ValueError: if the layer does not support memory, or arguments do not match.
    """
    if memory_segment_ids is not None:
        memory_segment_ids = as_integers("memory_segment_ids", as_tensor(memory_segment_ids))
    _check(layer, query, value, memory, memory_segment_ids)
    batch, length = shape(query)[:2]
    num_memory = min(memory.shape[1], layer.pattern.reach)  # no query attends further back
    if num_memory == 0:
        return masks, value
    memory, memory_segment_ids = (latest(x, num_memory) for x in (memory, memory_segment_ids))
    memory = zero_padding(memory, None if memory_segment_ids is None else memory_segment_ids >= 0)
    key_mask, attention_mask = masks.key_mask, masks.attention_mask
    if key_mask is not None:
        seen = ops.ones((batch, num_memory), dtype="bool")
        key_mask = ops.concatenate([seen, ops.broadcast_to(key_mask, (batch, length))], axis=1)
    if attention_mask is not None:  # it covers the keys after the memory, also with an axis of size 1
        sizes = shape(attention_mask)[:-1]
        seen = ops.ones((*sizes, num_memory), dtype="bool")
        attention_mask = ops.concatenate([seen, ops.broadcast_to(attention_mask, (*sizes, length))], axis=-1)
    segments = _segments(masks, query, memory_segment_ids)
    masks = masks._replace(key_mask=key_mask, attention_mask=attention_mask, num_memory=num_memory, **segments)
    return masks, ops.concatenate([ops.stop_gradient(memory), query], axis=1)


def memory_keys(
    layer: keras.layers.Layer, memory: Tensor, memory_mask: Tensor | None, batch_size: Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the keys and values of a memory.

    Args:
        layer: the attention layer.
        memory: float (B, L, D), inputs at the positions -L .. -1.
        memory_mask: bool (B, L), or None.
        batch_size: B.

    Returns:
        Rotated keys (B, M, L, H), values (B, M, L, Hv), and the visible positions, bool (B, L).

    Raises:
        ValueError: if the layer does not support memory, or arguments do not match.
    """
    check_supported(layer)
    known = batch_size if isinstance(batch_size, int) else None
    check_static("memory", memory.shape, ((known,), (None,), (layer.num_features,)))
    sizes = shape(memory)[:2]
    seen = ops.ones(sizes, dtype="bool")
    if memory_mask is not None:
        memory_mask = token_mask("memory_mask", memory_mask, memory)
        seen = ops.broadcast_to(memory_mask, sizes)
        memory = zero_padding(memory, memory_mask)
    _, key, value = layer.project(memory)
    positions = ops.arange(sizes[1], dtype="int32") - sizes[1]
    return layer.position_encoding.rotate(key, positions), value, seen


def latest(x: Tensor | None, count: int) -> Tensor | None:
    """Return the last `count` positions of (B, L, ...), or None."""
    if x is None or x.shape[1] == count:
        return x
    sizes = shape(x)
    return ops.slice(x, (0, sizes[1] - count) + (0,) * (len(sizes) - 2), (sizes[0], count) + sizes[2:])


def _segments(masks, query, memory_segment_ids):
    """Return the documents of queries and keys as fields of `TokenMasks`."""
    own = masks.query_segments
    if memory_segment_ids is None:
        if own is not None:
            raise ValueError("`memory_segment_ids` must be given where `segment_ids` are. Received: None.")
        return {}
    own = ops.zeros(shape(query)[:2], dtype="int32") if own is None else own
    keys = ops.concatenate([ops.cast(memory_segment_ids, own.dtype), own], axis=1)
    return {"query_segments": own, "key_segments": keys}


def supports_memory(layer: keras.layers.Layer) -> bool:
    """Return whether an attention layer, or each part of a `MixedAttention`, accepts a segment memory."""
    parts = getattr(layer, "parts", [layer])
    return all(not part.share_qk and part.pattern is not None and part.pattern.takes_memory for part in parts)


def check_supported(layer: keras.layers.Layer) -> None:
    """Raise a `ValueError` for a layer that does not support memory."""
    if not supports_memory(layer):
        raise ValueError(
            "`memory` must be None unless the pattern of the layer has `takes_memory` (Window, Blocks without "
            "`key_size`) and queries are not used as keys, as in LocalAttention and AllAttention. "
            f"Received: a memory for {layer.name}, a {type(layer).__name__}."
        )


def _check(layer, query, value, memory, memory_segment_ids):
    check_supported(layer)
    if value is not None:
        raise ValueError("`memory` must be None where `value` is given. Received: both.")
    check_static("memory", memory.shape, ((query.shape[0],), (None,), (query.shape[2],)))
    if memory.shape[1] is None:
        raise ValueError(f"`memory` must have a known length. Received: memory of shape {tuple(memory.shape)}.")
    if memory_segment_ids is not None:
        check_static("memory_segment_ids", memory_segment_ids.shape, ((query.shape[0],), (memory.shape[1],)))
