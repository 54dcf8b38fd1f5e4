"""Which earlier blocks of keys each query likes best, by the mean key of each block."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from keras import ops

from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.shapes import (
    are_known,
    best_group,
    join,
    max_over,
    pad_axis,
    shape,
    slice_axis,
    split,
)
from tf_sparse_attention.types import Size, Tensor

NO_BLOCK = -1


def blocks_in(length: Size, block_size: int) -> Size:
    """Returns how many blocks a sequence has, the last one perhaps not complete."""
    return (length + block_size - 1) // block_size


def num_choices(num_blocks: Size, wanted: int) -> int:
    """Returns how many of `wanted` earlier blocks the queries of a sequence of so many blocks can have."""
    return min(wanted, max(num_blocks - 1, 0)) if are_known(num_blocks) else wanted


class BlockKeys(NamedTuple):
    """Which keys of each block count, and who may choose it.

    Those that exist and are of the document of the block's last token, the only one that can go on in a later block.

    Attributes:
        block_size: b.
        num_blocks: G.
        numbers: int32 (G,), the number of each block; one tensor, as XLA allows no such range inside of a loop.
        counted: bool (B, G, b), or None for all.
        documents: int (B, G), that of the last token of each block, or None where nothing is packed.
    """

    block_size: int
    num_blocks: Size
    numbers: Tensor
    counted: Tensor | None
    documents: Tensor | None

    @classmethod
    def of(cls, masks: TokenMasks, length: Size, block_size: int) -> Self:
        """Returns those of a sequence of some length under the `TokenMasks` of a call."""
        num_blocks = blocks_in(length, block_size)
        sizes = block_size, num_blocks, ops.arange(num_blocks, dtype="int32")
        counted = None if masks.key_mask is None else split(masks.key_mask, block_size, -1, num_blocks)
        if masks.query_segments is None or masks.key_segments is None:
            return cls(*sizes, counted, None)
        documents = split(masks.key_segments, block_size, -1, num_blocks)
        counted = merge(counted, documents == documents[..., -1:])
        return cls(*sizes, counted, documents[..., -1])

    def before(self, positions: Tensor, segments: Tensor | None) -> Tensor:
        """Returns which blocks end before the position of a query, bool (B or 1, 1, T, G); see `among_first`."""
        return self.among_first(positions // self.block_size, segments)

    def among_first(self, ends: Tensor, segments: Tensor | None) -> Tensor:
        """Returns which of the first `ends` blocks have keys of the document of a query, bool (B or 1, 1, T, G).

        Args:
            ends: int32 (T,).
            segments: int (B, T), the document of each query; None where nothing is packed.
        """
        allowed = (self.numbers < ends[:, None])[None, None]
        if segments is not None and self.documents is not None:
            same = segments[:, None, :, None] == self.documents[:, None, None]
            allowed = ops.logical_and(allowed, same)
        if self.counted is not None:
            allowed = ops.logical_and(allowed, ops.any(self.counted, axis=-1)[:, None, None])
        return allowed


def select_blocks(
    query: Tensor,
    key: Tensor,
    masks: TokenMasks,
    block_size: int,
    num_selected: int,
    use_shared_choice: bool = False,
    chunk_size: int | None = None,
) -> list[Tensor]:
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
        use_shared_choice: whether the heads that share keys choose the same blocks, by the sum of their products.
        chunk_size: queries that choose at a time, one chunk after the other; None: all at once.

    Returns:
        List of int32 (B, N, T), the best block of each query, the second best ..; `NO_BLOCK` where it has not as many.
        One less than there are blocks if that is known to be fewer than `num_selected`.
    """
    query, key, num_heads = ops.stop_gradient(query), ops.stop_gradient(key), query.shape[1]
    if use_shared_choice:
        query = sum_groups(query, key.shape[1])
    blocks = BlockKeys.of(masks, shape(key)[2], block_size)
    means, count = _block_means(key, blocks), num_choices(blocks.num_blocks, num_selected)

    def choose(query, positions, segments):
        return best_blocks(query, means, blocks.before(positions, segments), count)

    if chunk_size is None or count == 0:
        chosen = choose(query, ops.arange(shape(query)[2], dtype="int32"), masks.query_segments)
    else:
        chosen = _in_chunks(choose, query, masks.query_segments, chunk_size)
    return [repeat_key_heads(each, num_heads) for each in chosen]


def _block_means(key, blocks):
    """Returns the mean key of each block, float32 (B, M, G, H), zeros where it has none."""
    keys = ops.cast(split(key, blocks.block_size, -2, blocks.num_blocks), "float32")  # (B, M, G, b, H)
    if blocks.counted is None:
        return ops.mean(keys, axis=-2)
    count = ops.sum(ops.cast(blocks.counted, "float32"), axis=-1)  # (B, G)
    total = ops.sum(ops.where(blocks.counted[:, None, ..., None], keys, 0), axis=-2)
    return total / ops.maximum(count, 1)[:, None, :, None]


def _in_chunks(choose, query, segments, size):
    """Returns what `choose` does of queries, their positions and documents, so many queries at a time."""
    length = shape(query)[2]
    number = blocks_in(length, size)
    queries = ops.moveaxis(split(query, size, -2, number), 2, 0)  # (n, B, N, c, H)
    given = [queries, ops.reshape(ops.arange(number * size, dtype="int32"), (number, size))]
    if segments is not None:
        given.append(ops.moveaxis(split(segments, size, -1, number), 1, 0))
    chosen = ops.map(lambda each: ops.stack(choose(*each, *[None] * (3 - len(each)))), tuple(given))  # (n, R, B, N, c)
    chosen = join(ops.moveaxis(chosen, 0, 3), -1, length)  # (R, B, N, T)
    return [chosen[index] for index in range(chosen.shape[0])]


def sum_groups(x: Tensor, num_key_heads: int) -> Tensor:
    """Returns the sum over the heads that share keys, (B, N, T, X) to float32 (B, M, T, X)."""
    batch, heads, length, size = shape(x)
    x = ops.cast(x, "float32")
    if heads == num_key_heads:
        return x
    return ops.sum(ops.reshape(x, (batch, num_key_heads, heads // num_key_heads, length, size)), axis=2)


def best_blocks(query: Tensor, means: Tensor, allowed: Tensor, count: int) -> list[Tensor]:
    """Returns the blocks of the largest q . mean, as `best_of` does.

    Args:
        query: (B, N, T, H).
        means: float32 (B, M, G, H).
        allowed: as in `best_of`.
        count: how many.
    """
    if count == 0:
        return []
    means = repeat_key_heads(means, query.shape[1])
    return best_of(ops.matmul(ops.cast(query, "float32"), ops.swapaxes(means, -1, -2)), allowed, count)


def best_of(scores: Tensor, allowed: Tensor, count: int) -> list[Tensor]:
    """Returns the blocks of the largest scores in rounds of argmax, of equal ones the earlier; no sort.

    Args:
        scores: float32 (B, N, T, G).
        allowed: bool (B or 1, 1, T, G), which blocks a query may have.
        count: how many.

    Returns:
        List of `count` int32 (B, N, T), `NO_BLOCK` where not so many are allowed.
    """
    least = lowest("float32")
    scores = ops.where(allowed, scores, least)  # and not a sum, in which no number of a later block would stay one
    number = ops.sum(ops.cast(allowed, "int32"), axis=-1)  # (B or 1, 1, T)
    blocks, chosen = ops.arange(shape(scores)[-1], dtype="int32"), []
    last = max_over(ops.where(allowed, blocks, NO_BLOCK), axis=-1)  # (B or 1, 1, T)
    for taken in range(count):
        best = best_group(scores)
        # Whatever scores are, no later block is taken, nor one that is not there.
        chosen.append(ops.where(ops.logical_and(number > taken, best <= last), best, NO_BLOCK))
        if taken + 1 < count:
            # In less time than a `where`; a quarter of `least` leaves a score less than all others.
            scores = scores + ops.one_hot(best, shape(scores)[-1], dtype="float32") * (least / 4)
    return chosen


def choices_by_name(chosen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Returns chosen blocks, the best first, by the names that they have among what is known of a query."""
    return {f"block_{number}": block for number, block in enumerate(chosen)}


def convolve_keys(key: Tensor, kernel: Tensor, masks: TokenMasks = TokenMasks()) -> Tensor:
    """Add a depthwise causal convolution of the keys to the keys.

    k_i + silu(sum_l w_l k_{i-l}) over the unmasked keys i - l in the document of key i. Cost O(T K) per channel.

    Args:
        key: (B, M, S, H).
        kernel: (K, M, H). Row l applies to the key l positions earlier.
        masks: a `TokenMasks`. Masked keys do not contribute to other keys.
    """
    exists, documents = masks.key_mask, masks.key_segments
    visible = key if exists is None else ops.where(exists[:, None, :, None], key, 0)
    total = visible * kernel[0][:, None]
    for distance in range(1, kernel.shape[0]):
        before = _shifted(visible, -2, distance)
        if documents is not None:
            same = _shifted(documents, -1, distance) == documents
            before = ops.where(same[:, None, :, None], before, 0)
        total = total + before * kernel[distance][:, None]
    return key + ops.silu(total)


def convolve_next(key: Tensor, before: Tensor, kernel: Tensor) -> Tensor:
    """Apply `convolve_keys` to the key of the next token, given the keys before it.

    Args:
        key: (B, M, 1, H).
        before: (B, M, K - 1, H), the keys 1, 2 .. positions earlier; zeros before the first token.
        kernel: (K, M, H).
    """
    keys = ops.concatenate([key, ops.cast(before, key.dtype)], axis=2)
    return key + ops.silu(ops.sum(keys * ops.swapaxes(kernel, 0, 1), axis=2, keepdims=True))


def _shifted(x, axis, distance):
    """Shift by `distance` positions to the right along a negative axis, filled with zeros."""
    return slice_axis(pad_axis(x, axis, distance, 0), axis, 0, shape(x)[axis])
