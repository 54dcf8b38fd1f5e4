"""Boolean masks (True: may attend): merging, gathers at sparse slots, and dense masks from positions."""

import functools
from typing import NamedTuple, Self

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.shapes import are_known, shape
from tf_sparse_attention.types import Size, Tensor

CONSTANT = bool | np.bool_ | np.ndarray  # masks that are known at trace time
MAX_AXES = 4  # of a broadcast in a logical operation of LiteRT


class TokenMasks(NamedTuple):
    """Masks of a call. A field that is None masks nothing.

    Attributes:
        query_mask: bool (B, T). A masked query has output 0.
        key_mask: bool (B, S). A masked key does not exist: it takes no slot in a cluster.
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1). The keys of a masked pair keep their slots.
        query_segments: int (B, T), the document of each query. Tokens attend within their document.
        key_segments: int (B, S).
        num_memory: integer, number of keys before the first query, from earlier segments.
        global_counts: int or bool (B, T), how often each token counts as a global key of all queries, mostly 0.
    """

    query_mask: Tensor | None = None
    key_mask: Tensor | None = None
    attention_mask: Tensor | None = None
    query_segments: Tensor | None = None
    key_segments: Tensor | None = None
    num_memory: int = 0
    global_counts: Tensor | None = None

    def slice_heads(self, heads: slice) -> Self:
        """Return the masks of a slice of the heads."""
        return self._replace(attention_mask=slice_mask_heads(self.attention_mask, heads))


def has_successor(masks: TokenMasks) -> Tensor | None:
    """Return whether the next token exists and is in the same document, bool (B, S); None: all except the last."""
    conditions = []
    if masks.key_mask is not None:
        conditions += [masks.key_mask[:, :-1], masks.key_mask[:, 1:]]
    if masks.key_segments is not None:
        conditions.append(masks.key_segments[:, :-1] == masks.key_segments[:, 1:])
    has_next = merge(*conditions)
    return None if has_next is None else ops.pad(has_next, [(0, 0), (0, 1)])


def merge(*masks: Tensor | None) -> Tensor | None:
    """Return the logical and of all masks that are not None, or None. NumPy masks alone give a NumPy mask."""
    constants = [np.asarray(mask) for mask in masks if isinstance(mask, CONSTANT)]
    others = [mask for mask in masks if mask is not None and not isinstance(mask, CONSTANT)]
    if constants:
        constant = functools.reduce(np.logical_and, constants)
        if not others:
            return None if constant.all() else constant
        others = others if constant.all() else [constant_mask(constant), *others]
    return functools.reduce(_and, others) if others else None


def constant_mask(mask: np.ndarray) -> Tensor:
    """Convert a NumPy mask to a tensor. TensorFlow serializes uint8 constants 100 times faster than booleans."""
    return ops.cast(ops.convert_to_tensor(mask.view("uint8")), "bool")


def negate(mask: Tensor | None) -> Tensor:
    """Return the logical not of a mask: NumPy for a NumPy mask. None allows all pairs, so it gives a constant False."""
    if mask is None:
        return np.zeros((1, 1), bool)  # (t, s), as every mask of pairs
    return ~np.asarray(mask) if isinstance(mask, CONSTANT) else ops.logical_not(mask)


def _and(first, second):
    """Return `ops.logical_and` of masks of any rank, merging adjacent axes that broadcast alike if sizes are known."""
    shapes = tuple(first.shape), tuple(second.shape)
    rank = max(map(len, shapes))
    sizes = [(1,) * (rank - len(axes)) + axes for axes in shapes]
    if rank <= MAX_AXES or shapes[0] == shapes[1]:
        return ops.logical_and(first, second)
    if not are_known(*sizes[0], *sizes[1]):
        return ops.logical_and(*_broadcast(first, second))
    result: list[int] = []
    joined: list[tuple[int, ...]] = []
    last = None
    for pair in zip(*sizes, strict=True):
        result.append(pair[1] if pair[0] == 1 else pair[0])  # may be 0
        spread = tuple(size == 1 for size in pair)
        if not all(spread):
            if spread == last:
                pair = tuple(size * more for size, more in zip(joined.pop(), pair, strict=True))
            joined, last = [*joined, pair], spread
    axes = zip(*(joined or [(1, 1)]), strict=True)
    first, second = (ops.reshape(x, merged) for x, merged in zip((first, second), axes, strict=True))
    return ops.reshape(ops.logical_and(first, second), result)


def _broadcast(first, second):
    """Broadcast two masks to their common shape. On JAX, which cannot compare unknown sizes, return them unchanged."""
    if keras.backend.backend() != "tensorflow":
        return first, second
    rank = max(len(first.shape), len(second.shape))
    sizes = [(1,) * (rank - len(x.shape)) + shape(x) for x in (first, second)]
    common = [_common_size(*pair) for pair in zip(*sizes, strict=True)]
    return ops.broadcast_to(first, common), ops.broadcast_to(second, common)


def _common_size(one: Size, other: Size) -> Size:
    """Return the size of an axis after broadcasting."""
    if are_known(one) and are_known(other):
        return other if one == 1 else one
    known = next((size for size in (one, other) if are_known(size)), None)
    if known is None:  # sizes 1 and 0 broadcast to 0
        return ops.where(one == 1, other, one)
    return known if known != 1 else (other if are_known(one) else one)


def expand_attention_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Expand an attention mask (T, S) or (B, T, S) to a bool of rank 4, broadcastable to (B, N, T, S)."""
    if attention_mask is None:
        return None
    mask = ops.cast(attention_mask, "bool")
    rank = len(mask.shape)
    if rank == 2:
        return mask[None, None]
    return mask[:, None] if rank == 3 else mask


def slice_mask_heads(attention_mask: Tensor | None, heads: slice) -> Tensor | None:
    """Return the attention mask of a slice of the heads.

    Args:
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1), or None.
        heads: slice of the N heads. It must have an end if the number of heads is unknown.
    """
    if attention_mask is None:
        return None
    size = shape(attention_mask)[1]
    if isinstance(size, int):
        return attention_mask if size == 1 else attention_mask[:, heads]
    numbers = range(heads.stop)[heads]
    return ops.take(attention_mask, ops.minimum(ops.convert_to_tensor(numbers, "int32"), size - 1), axis=1)


def take_mask_pairs(attention_mask: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Gather an attention mask at pairs of positions, without broadcasting the mask.

    Args:
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1).
        query_positions: int (G, t) or (1 or B, 1 or N, G, t). Positions out of range are clipped.
        key_positions: int (G, s) or (1 or B, 1 or N, G, s). Positions out of range are clipped.

    Returns:
        Bool (1 or B, 1 or N, G, t or 1, s or 1).
    """
    batch, heads, num_queries, num_keys = shape(attention_mask)
    index = ops.reshape(_offsets(batch) * heads, (-1, 1, 1, 1, 1)) + ops.reshape(_offsets(heads), (-1, 1, 1, 1))
    index = index * num_queries
    if not _is_one(num_queries):
        index = index + ops.clip(query_positions, 0, num_queries - 1)[..., :, None]
    index = index * num_keys
    if not _is_one(num_keys):
        index = index + ops.clip(key_positions, 0, num_keys - 1)[..., None, :]
    return ops.take(ops.reshape(attention_mask, (-1,)), index, axis=0)


def _offsets(size):
    return ops.arange(size, dtype="int32")


def _is_one(size):
    return isinstance(size, int) and size == 1


def causal_mask(query_length: Size, key_length: Size) -> Tensor:
    """Return the dense causal mask j <= i, bool (T, S)."""
    return _offsets(key_length)[None, :] <= _offsets(query_length)[:, None]


def shared_document_starts(masks: TokenMasks) -> Tensor:
    """Return the `document_starts` of packed documents that queries and keys share, int32 (B, 1, T).

    Raises:
        ValueError: if keys have other documents than queries.
    """
    if masks.key_segments is not masks.query_segments:
        raise ValueError(
            "`value_segment_ids` must be None with First(per_document=True), because documents of two sequences begin "
            "at different positions. Use one row per document. Received: value_segment_ids."
        )
    return document_starts(masks.query_segments)[:, None]


def document_starts(segments: Tensor) -> Tensor:
    """Return the first position of the document of each token, int32 (B, T). Equal ids in a row are one document."""
    batch, length = shape(segments)
    begins = ops.pad(segments[:, 1:] != segments[:, :-1], [(0, 0), (1, 0)])
    runs = ops.cumsum(ops.cast(begins, "int32"), axis=-1)  # index of the document
    index = ops.reshape(runs + _offsets(batch)[:, None] * length, (-1,))
    starts = ops.reshape(ops.where(begins, _offsets(length), 0), (-1,))
    starts = ops.segment_sum(starts, index, num_segments=batch * length)  # only first tokens are not zero
    return ops.reshape(ops.take(starts, index, axis=0), (batch, length))


def hide_self_unless_alone(mask: Tensor) -> Tensor:
    """Mask the diagonal of a dense mask (..., T, S), except for tokens that may attend only to themselves."""
    is_self = ops.eye(*shape(mask)[-2:], dtype="bool")
    others = ops.logical_and(mask, ops.logical_not(is_self))
    alone = ops.logical_not(ops.any(others, axis=-1, keepdims=True))
    return ops.logical_or(others, ops.logical_and(mask, ops.logical_and(is_self, alone)))


def dense_mask(pattern: Tensor | None, masks: TokenMasks) -> Tensor | None:
    """Merge a dense pattern mask with the masks of a call.

    Args:
        pattern: bool, broadcastable to (B, N, T, S). None: all pairs.
        masks: a `TokenMasks`.

    Returns:
        Bool, broadcastable to (B, N, T, S); None if all pairs are allowed.
    """
    segments = None
    if masks.query_segments is not None and masks.key_segments is not None:
        segments = masks.query_segments[:, None, :, None] == masks.key_segments[:, None, None, :]
    queries = None if masks.query_mask is None else masks.query_mask[:, None, :, None]
    keys = None if masks.key_mask is None else masks.key_mask[:, None, None, :]
    return merge(pattern, segments, queries, keys, masks.attention_mask)
