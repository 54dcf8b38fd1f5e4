"""Basic operations on tensors: shapes, slices, padding, blocks, maxima."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.types import Size, Tensor


def shape(x: Tensor) -> tuple[Size, ...]:
    """Return the shape of a tensor: an integer per known size, a scalar tensor per unknown size."""
    # Keras adds a shape operation to the TensorFlow graph even if all sizes are known.
    if getattr(x.shape, "rank", 0) is not None:
        sizes = tuple(x.shape)
        if None not in sizes:
            return sizes
    return tuple(ops.shape(x))


def slice_axis(x: Tensor, axis: int, start: Size, stop: Size) -> Tensor:
    """Return `x[..., start:stop, ...]` along a negative `axis`. The bounds may be tensors and must be in range."""
    # Not by indexing: its gradient on TensorFlow costs more than the attention itself.
    sizes = list(shape(x))
    if is_known_zero(start) and isinstance(stop, int) and isinstance(sizes[axis], int) and sizes[axis] == stop:
        return x
    begins = [0] * len(sizes)
    begins[axis], sizes[axis] = start, stop - start
    return ops.slice(x, begins, sizes)


def pad_axis(x: Tensor, axis: int, before: Size, after: Size) -> Tensor:
    """Pad a negative `axis` with `before` and `after` zeros (False). Both may be tensors."""
    if is_known_zero(before) and is_known_zero(after):
        return x
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, after)
    return ops.pad(x, widths)


def shift_left(x: Tensor, axis: int) -> Tensor:
    """Shift rows by one position to the left along a negative `axis`: y_i = x_{i+1}, with zeros at the end."""
    return pad_axis(slice_axis(x, axis, 1, shape(x)[axis]), axis, 0, 1)


def shift_right(x: Tensor, axis: int, first: int = 0) -> Tensor:
    """Shift rows by one position to the right along a negative `axis`: y_i = x_{i-1}, with `first` at the start."""
    shifted = pad_axis(slice_axis(x, axis, 0, shape(x)[axis] - 1), axis, 1, 0)
    if first == 0:
        return shifted
    ends = [-1 if i == len(x.shape) + axis else 1 for i in range(len(x.shape))]
    return ops.where(ops.reshape(arange(shape(x)[axis]), ends) == 0, first, shifted)


def is_known_zero(number: Size) -> bool:
    """Return whether a size is statically known to be zero."""
    return isinstance(number, int) and number == 0


def are_known(*sizes: Size) -> bool:
    """Return whether all sizes are integers: neither tensors nor symbolic dimensions of a JAX export."""
    return all([isinstance(size, int) for size in sizes])  # noqa: C419  # a list is faster than a generator here


def in_range(index: Tensor, length: Size) -> Tensor:
    """Clip indices to 0 .. length - 1."""
    # Not by `ops.clip`: LiteRT's converter reads a clip to 0 .. 6 as the activation relu6, which needs floats.
    return ops.minimum(ops.maximum(index, 0), length - 1)


def matmul_last_axis(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply the last axis by a matrix: (..., H) and (H, R) to (..., R).

    TensorFlow 2.21 on CPUs writes out of bounds when `matmul` broadcasts leading axes (oneDNN, fixed in later
    releases). So `ops.matmul` is used only for operands with equal leading axes.
    """
    sizes = shape(x)
    product = ops.matmul(ops.reshape(x, (-1, sizes[-1])), matrix)
    return ops.reshape(product, (*sizes[:-1], matrix.shape[-1]))


def max_over(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """Compute the maximum over an axis. Unlike `keras.ops.max`, it accepts an empty batch in eager TensorFlow."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    lowest = float("-inf") if "float" in dtype else np.iinfo(dtype).min
    return ops.max(x, axis=axis, keepdims=keepdims, initial=lowest)


def max_size(one: Size, other: Size) -> Size:
    """Return the larger of two sizes."""
    if ops.is_tensor(one) or ops.is_tensor(other):
        return ops.maximum(one, other)
    return _choose(max, one, other)


def min_size(one: Size, other: Size) -> Size:
    """Return the smaller of two sizes."""
    if ops.is_tensor(one) or ops.is_tensor(other):
        return ops.minimum(one, other)
    return _choose(min, one, other)


def _choose(function, one, other):
    """Apply `min` or `max` to sizes that are integers or symbolic dimensions, which have methods of these names."""
    one, other = (other, one) if isinstance(one, int) else (one, other)
    return function(one, other) if isinstance(one, int) else getattr(one, function.__name__)(other)


def min_if_known(size: Size, limit: Size) -> Size:
    """Return the smaller of a size and a limit if both are known, else the size."""
    return min(size, limit) if are_known(size, limit) else size


def arange(length: Size) -> Tensor:
    """Return 0 .. length - 1 as int32: a NumPy constant if the length is known, else a tensor."""
    return np.arange(length, dtype="int32") if isinstance(length, int) else ops.arange(length, dtype="int32")


def split(x: Tensor, block_size: int, axis: int, num_blocks: Size) -> Tensor:
    """Split an axis into `num_blocks` blocks, padded with zeros or cut at the end.

    Args:
        x: tensor (..., T, ...).
        block_size: positions per block, an integer.
        axis: negative index of the axis of length T.
        num_blocks: G, an integer or a scalar tensor.

    Returns:
        Tensor (..., G, block_size, ...).
    """
    length, total = shape(x)[axis], num_blocks * block_size
    x = slice_axis(pad_axis(x, axis, 0, max_size(total - length, 0)), axis, 0, total)
    sizes = shape(x)
    return ops.reshape(x, sizes[:axis] + (num_blocks, block_size) + sizes[len(sizes) + axis + 1 :])


def join(x: Tensor, axis: int, length: Size) -> Tensor:
    """Undo `split`: merge the axes (`axis` - 1, `axis`) and keep the first `length` positions.

    Args:
        x: tensor (..., G, t, ...).
        axis: negative index of the axis of positions in a block.
        length: positions to keep, an integer or a scalar tensor.

    Returns:
        Tensor (..., length, ...).
    """
    sizes = shape(x)
    end = len(sizes) + axis
    num_blocks, block_size = sizes[end - 1], sizes[end]
    x = ops.reshape(x, sizes[: end - 1] + (num_blocks * block_size,) + sizes[end + 1 :])
    return slice_axis(x, axis, 0, length)


def find_top_k(x: Tensor, k: int, sorted: bool = False) -> tuple[Tensor, Tensor]:
    """Find the k largest numbers of the last axis; among equal numbers, those with the lowest index.

    Like `keras.ops.top_k`, except for JAX programs with unknown sizes. JAX programs with unknown sizes are programs for
    export, and TensorFlow cannot load JAX's `top_k` operation. For these programs, the function sorts instead, which
    takes several times as long. When sorted, -0 equals 0, and NaN comes last.

    Args:
        x: numbers (..., T); integers must exceed the smallest value of their dtype.
        k: at most T.
        sorted: whether the result is in descending order. Default False.

    Returns:
        Pair of the numbers (..., k) and their int32 positions (..., k).
    """
    if keras.backend.backend() != "jax" or are_known(*x.shape):
        # XLA sorts all numbers, which takes many times as long, if there are more axes.
        found, positions = ops.top_k(ops.reshape(x, (-1, shape(x)[-1])), k, sorted=sorted)
        sizes = (*shape(x)[:-1], k)
        return ops.reshape(found, sizes), ops.cast(ops.reshape(positions, sizes), "int32")
    positions = ops.cast(ops.argsort(-x, axis=-1)[..., :k], "int32")
    return ops.take_along_axis(x, positions, axis=-1), positions


def argmax_last_axis(scores: Tensor) -> Tensor:
    """Return the index of the highest score, the lowest index among equals: float (..., K) to int32 (...).

    Faster than `ops.argmax`: 2 to 18 times for K = 32, up to 2 times for K = 128. The function uses only operations
    that every export runtime supports. -0 equals 0. A row with NaN gives an arbitrary index.
    """
    num_groups = shape(scores)[-1]
    backwards = ops.arange(num_groups - 1, -1, -1, dtype="float32")  # float32: faster maximum than int32
    best = ops.cast(scores == max_over(scores, axis=-1, keepdims=True), "float32")
    return num_groups - 1 - ops.cast(max_over(best * backwards, axis=-1), "int32")


def merge_heads(x: Tensor) -> Tensor:
    """Merge heads (B, N, T, H) into one, (B, 1, T, N H)."""
    batch, heads, length, size = shape(x)
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, 1, length, heads * size))


def unmerge_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split one head (B, 1, T, N H) into `num_heads` heads, (B, N, T, H): the inverse of `merge_heads`."""
    batch, _, length, size = shape(x)
    return ops.transpose(ops.reshape(x, (batch, length, num_heads, size // num_heads)), (0, 2, 1, 3))


def repeat_key_heads(x: Tensor, num_heads: int | None) -> Tensor:
    """Repeat key heads for their query heads: (B, M, ..) to (B, N, ..)."""
    heads = x.shape[1]
    if num_heads is None or heads == num_heads:
        return x
    return ops.repeat(x, num_heads // heads, axis=1)


def take_key_heads(x: Tensor, num_key_heads: int) -> Tensor:
    """Take one query head per group, for data that a group shares: (B, N or 1, ..) to (B, M or 1, ..)."""
    return x[:, :: max(x.shape[1] // num_key_heads, 1)]


def fold_groups(x: Tensor, num_key_heads: int) -> Tensor:
    """Concatenate the tokens of the heads of each group: (B, N, T, H) to (B, M, g T, H)."""
    batch, heads, length, size = shape(x)
    return ops.reshape(x, (batch, num_key_heads, heads // num_key_heads * length, size))


def unfold_groups(x: Tensor, num_heads: int) -> Tensor:
    """Undo `fold_groups` for numbers: (B, M, g T) to (B, N, T)."""
    batch, heads, rows = shape(x)
    return ops.reshape(x, (batch, num_heads, rows // (num_heads // heads)))


def matmul_heads(x: Tensor, y: Tensor) -> Tensor:
    """Multiply (B, N, T, S) by (B, M, S, X), which the heads of a group share: (B, N, T, X)."""
    num_heads, num_key_heads = x.shape[1], y.shape[1]
    if num_heads == num_key_heads:
        return ops.matmul(x, y)
    rows = ops.matmul(fold_groups(x, num_key_heads), y)
    batch, _, _, size = shape(rows)
    return ops.reshape(rows, (batch, num_heads, shape(x)[2], size))
