"""Selection of key blocks by the score of their mean key (MoBA), and causal convolution of keys."""

from typing import NamedTuple, Self

from keras import ops

from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.shapes import (
    are_known,
    argmax_last_axis,
    find_top_k,
    join,
    max_over,
    max_size,
    pad_axis,
    repeat_key_heads,
    shape,
    slice_axis,
    split,
)
from tf_sparse_attention.types import Size, Tensor

NO_BLOCK = -1
MAX_ROUNDS = 8  # blocks that are selected one by one


def count_blocks(length: Size, block_size: int) -> Size:
    """Return the number of blocks of a sequence; the last one may be incomplete."""
    return (length + block_size - 1) // block_size


def num_selectable(num_blocks: Size, num_selected: int) -> int:
    """Return `num_selected`, or the largest possible number of earlier blocks if that is known to be less."""
    return min(num_selected, max(num_blocks - 1, 0)) if are_known(num_blocks) else num_selected


class BlockKeys(NamedTuple):
    """Blocks of keys that later queries may select.

    A block represents the document of its last token, because only this document can continue in a later block. Keys of
    other documents and padding do not count.

    Attributes:
        block_size: b.
        num_blocks: G.
        numbers: int32 (G,), indices of the blocks. A field, because XLA does not allow this `arange` inside a loop.
        counted: bool (B, G, b), whether a key counts. None: all.
        documents: int (B, G), document of the last token of each block. None without packed documents.
    """

    block_size: int
    num_blocks: Size
    numbers: Tensor
    counted: Tensor | None
    documents: Tensor | None

    @classmethod
    def from_masks(cls, masks: TokenMasks, length: Size, block_size: int) -> Self:
        """Return the blocks of a sequence under the `TokenMasks` of a call."""
        num_blocks = count_blocks(length, block_size)
        sizes = block_size, num_blocks, ops.arange(num_blocks, dtype="int32")
        counted = None if masks.key_mask is None else split(masks.key_mask, block_size, -1, num_blocks)
        if masks.query_segments is None or masks.key_segments is None:
            return cls(*sizes, counted, None)
        documents = split(masks.key_segments, block_size, -1, num_blocks)
        counted = merge(counted, documents == documents[..., -1:])
        return cls(*sizes, counted, documents[..., -1])

    def before(self, positions: Tensor, segments: Tensor | None) -> Tensor:
        """Return the mask of blocks that end before each query, bool (B or 1, 1, T, G); see `among_first`."""
        return self.among_first(positions // self.block_size, segments)

    def among_first(self, ends: Tensor, segments: Tensor | None) -> Tensor:
        """Return, for each query, which of the first `ends` blocks have keys in the query's document.

        Only the document of a block's last token counts, see `BlockKeys`.

        Args:
            ends: int32 (T,).
            segments: int (B, T), the document of each query. None without packed documents.

        Returns:
            Bool (B or 1, 1, T, G).
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
) -> Tensor | None:
    """Select the earlier blocks whose mean key has the largest product with each query, without a gradient.

    A query at position i can select block g if (g + 1) b <= i, the block's last token is in the query's document, and
    the block has an unmasked key of this document. The mean is over the unmasked keys of this document. Cost O(T S / b)
    per head.

    Args:
        query: (B, N, T, H), rotated by position.
        key: (B, M, S, H), rotated by position. Query head n uses key head n // (N / M).
        masks: the `TokenMasks` of the call.
        block_size: b.
        num_selected: number of blocks.
        use_shared_choice: whether heads that share keys select the same blocks, by the sum of their products.
        chunk_size: queries per selection step. None: all at once.

    Returns:
        Int32 (B, N, T, R): the highest-scoring block of each query, the second highest, and so on; `NO_BLOCK` if fewer
        can be selected. R is `num_selected`, or G - 1 if the sequence is known to have G <= `num_selected` blocks. None
        instead of R = 0.
    """
    query, key, num_heads = ops.stop_gradient(query), ops.stop_gradient(key), query.shape[1]
    if use_shared_choice:
        query = sum_groups(query, key.shape[1])
    blocks = BlockKeys.from_masks(masks, shape(key)[2], block_size)
    means, count = _block_means(key, blocks), num_selectable(blocks.num_blocks, num_selected)

    def choose(query, positions, segments):
        return best_blocks(query, means, blocks.before(positions, segments), count)

    if count == 0:
        return None
    if chunk_size is None:
        chosen = choose(query, ops.arange(shape(query)[2], dtype="int32"), masks.query_segments)
    else:
        chosen = _in_chunks(choose, query, masks.query_segments, chunk_size)
    return repeat_key_heads(chosen, num_heads)


def _block_means(key, blocks):
    """Return the mean key of each block, float32 (B, M, G, H); zeros for a block without counted keys."""
    keys = ops.cast(split(key, blocks.block_size, -2, blocks.num_blocks), "float32")  # (B, M, G, b, H)
    if blocks.counted is None:
        return ops.mean(keys, axis=-2)
    count = ops.sum(ops.cast(blocks.counted, "float32"), axis=-1)  # (B, G)
    total = ops.sum(ops.where(blocks.counted[:, None, ..., None], keys, 0), axis=-2)
    return total / ops.maximum(count, 1)[:, None, :, None]


def _in_chunks(choose, query, segments, size):
    """Apply `choose` to queries, their positions and documents, `size` queries at a time."""
    length = shape(query)[2]
    number = count_blocks(length, size)
    queries = ops.moveaxis(split(query, size, -2, number), 2, 0)  # (n, B, N, c, H)
    given = [queries, ops.reshape(ops.arange(number * size, dtype="int32"), (number, size))]
    if segments is not None:
        given.append(ops.moveaxis(split(segments, size, -1, number), 1, 0))
    chosen = ops.map(lambda each: choose(*each, *[None] * (3 - len(each))), tuple(given))  # (n, B, N, c, R)
    return join(ops.moveaxis(chosen, 0, 2), -2, length)


def sum_groups(x: Tensor, num_key_heads: int) -> Tensor:
    """Sum over the heads that share keys: (B, N, T, X) to float32 (B, M, T, X)."""
    batch, heads, length, size = shape(x)
    x = ops.cast(x, "float32")
    if heads == num_key_heads:
        return x
    return ops.sum(ops.reshape(x, (batch, num_key_heads, heads // num_key_heads, length, size)), axis=2)


def best_blocks(query: Tensor, means: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Select the allowed blocks with the largest q . mean, see `top_blocks`.

    Args:
        query: (B, N, T, H).
        means: float32 (B, M, G, H).
        allowed: bool (B or 1, 1, T, G).
        count: number of blocks.
    """
    means = repeat_key_heads(means, query.shape[1])
    return top_blocks(ops.matmul(ops.cast(query, "float32"), ops.swapaxes(means, -1, -2)), allowed, count)


def top_blocks(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Select the allowed blocks with the largest scores, the earlier among equals.

    Args:
        scores: float32 (B, N, T, G).
        allowed: bool (B or 1, 1, T, G).
        count: number of blocks, at least 1.

    Returns:
        Int32 (B, N, T, count), the highest-scoring block first; `NO_BLOCK` if fewer are allowed.
    """
    least = lowest("float32")
    scores = ops.where(allowed, scores, least)  # not a sum: later blocks could have a NaN score
    number = ops.sum(ops.cast(allowed, "int32"), axis=-1, keepdims=True)  # (B or 1, 1, T, 1)
    blocks = ops.arange(shape(scores)[-1], dtype="int32")
    last = max_over(ops.where(allowed, blocks, NO_BLOCK), axis=-1, keepdims=True)
    if count > MAX_ROUNDS:
        missing = max_size(count - shape(scores)[-1], 0)
        scores = ops.pad(scores, ((0, 0),) * 3 + ((0, missing),), constant_values=least)
        best = find_top_k(scores, count, sorted=True)[1]
    else:
        best = ops.stack(_best_in_rounds(scores, count), axis=-1)
    # Never select a later or missing block, even if a score is NaN.
    is_found = ops.logical_and(number > ops.arange(count, dtype="int32"), best <= last)
    return ops.where(is_found, best, NO_BLOCK)


def _best_in_rounds(scores, count):
    """Return the blocks with the largest scores, one round for each: for few blocks faster than top-k."""
    chosen = [argmax_last_axis(scores)]
    for _ in range(count - 1):
        # Faster than `where`. Adding a quarter of the lowest number lowers the score below all others.
        scores = scores + ops.one_hot(chosen[-1], shape(scores)[-1], dtype="float32") * (lowest("float32") / 4)
        chosen.append(argmax_last_axis(scores))
    return chosen


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


def _shifted(x, axis, distance):
    """Shift by `distance` positions to the right along a negative axis, filled with zeros."""
    return slice_axis(pad_axis(x, axis, distance, 0), axis, 0, shape(x)[axis])
