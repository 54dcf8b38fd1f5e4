"""Which earlier blocks of keys each query likes best, by the mean key of each block."""

from collections.abc import Sequence

from keras import ops

from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.blocks import are_known, shape, split
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.types import Size, Tensor

NO_BLOCK = -1


def blocks_in(length: Size, block_size: int) -> Size:
    """Returns how many blocks a sequence has, the last one perhaps not complete."""
    return (length + block_size - 1) // block_size


def num_choices(num_blocks: Size, wanted: int) -> int:
    """Returns how many of `wanted` earlier blocks the queries of a sequence of so many blocks can have."""
    return min(wanted, max(num_blocks - 1, 0)) if are_known(num_blocks) else wanted


def select_blocks(query: Tensor, key: Tensor, masks: TokenMasks, block_size: int, num_selected: int) -> list[Tensor]:
    """Returns the earlier blocks whose mean key each query likes best, no gradient going through the choice.

    Block g, of the positions g b .. g b + b - 1, is one for queries of later blocks alone. Its mean is over the keys
    that exist and are of the document of its last token, the only one that can go on in a later block; a block without
    such keys, or of another document than the query, is not chosen. Cost O(T S / b) for each head.

    Args:
        query: (B, N, T, H), turned by positions.
        key: (B, M, S, H), likewise; head n of the queries reads head n // (N / M).
        masks: the `TokenMasks` of the call.
        block_size: b.
        num_selected: how many blocks to choose.

    Returns:
        List of int32 (B, N, T), the best block of each query, the second best ..; `NO_BLOCK` where it has not as many.
        One less than there are blocks if that is known to be fewer than `num_selected`.
    """
    query, key = ops.stop_gradient(query), ops.stop_gradient(key)
    num_blocks = blocks_in(shape(key)[2], block_size)
    own = ops.arange(shape(query)[2], dtype="int32")[:, None] // block_size
    allowed = (ops.arange(num_blocks, dtype="int32") < own)[None, None]  # (1, 1, T, G)
    means, exists = _block_means(key, masks, block_size, num_blocks)
    if masks.query_segments is not None and masks.key_segments is not None:
        documents = split(masks.key_segments, block_size, -1, num_blocks)[..., -1]
        allowed = ops.logical_and(allowed, masks.query_segments[:, None, :, None] == documents[:, None, None])
    if exists is not None:
        allowed = ops.logical_and(allowed, exists[:, None, None])
    return best_blocks(query, means, allowed, num_choices(num_blocks, num_selected))


def _block_means(key, masks, block_size, num_blocks):
    """Returns the mean key of each block, float32 (B, M, G, H), and which have one, bool (B, G), None for all."""
    blocks = ops.cast(split(key, block_size, -2, num_blocks), "float32")  # (B, M, G, b, H)
    counted = None if masks.key_mask is None else split(masks.key_mask, block_size, -1, num_blocks)
    if masks.key_segments is not None:
        documents = split(masks.key_segments, block_size, -1, num_blocks)
        counted = merge(counted, documents == documents[..., -1:])
    if counted is None:
        return ops.mean(blocks, axis=-2), None
    count = ops.sum(ops.cast(counted, "float32"), axis=-1)  # (B, G)
    total = ops.sum(ops.where(counted[:, None, ..., None], blocks, 0), axis=-2)
    return total / ops.maximum(count, 1)[:, None, :, None], count > 0


def best_blocks(query: Tensor, means: Tensor, allowed: Tensor, count: int) -> list[Tensor]:
    """Returns the blocks of the largest q . mean in rounds of argmax, of equal ones the earlier; no sort.

    Args:
        query: (B, N, T, H).
        means: float32 (B, M, G, H).
        allowed: bool (B or 1, 1, T, G), which blocks a query may have.
        count: how many.

    Returns:
        List of `count` int32 (B, N, T), `NO_BLOCK` where not so many are allowed.
    """
    if count == 0:
        return []
    heads, key_heads, least = query.shape[1], means.shape[1], lowest("float32")
    means = means if heads == key_heads else ops.repeat(means, heads // key_heads, axis=1)
    scores = ops.matmul(ops.cast(query, "float32"), ops.swapaxes(means, -1, -2))  # (B, N, T, G)
    scores = ops.where(allowed, scores, least)  # and not a sum, in which no number of a later block would stay one
    number = ops.sum(ops.cast(allowed, "int32"), axis=-1)  # (B or 1, 1, T)
    blocks, chosen = ops.arange(shape(means)[2], dtype="int32"), []
    last = ops.max(ops.where(allowed, blocks, NO_BLOCK), axis=-1)  # (B or 1, 1, T)
    for taken in range(count):
        best = ops.cast(ops.argmax(scores, axis=-1), "int32")
        # Whatever scores are, no later block is taken, nor one that is not there.
        chosen.append(ops.where(ops.logical_and(number > taken, best <= last), best, NO_BLOCK))
        if taken + 1 < count:
            scores = scores + ops.where(blocks == best[..., None], least / 4, 0.0)  # half the time of a choice
    return chosen


def names_of(chosen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Returns chosen blocks by the names that they have among what is known of a query."""
    return {f"block_{number}": block for number, block in enumerate(chosen)}
