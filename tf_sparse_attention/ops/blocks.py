"""Shapes, slices and padding of tensors, and sequences cut into blocks."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.types import Size, Tensor


def shape(x: Tensor) -> tuple[Size, ...]:
    """Returns the shape of a tensor: integers where they are known, scalar tensors where they are not."""
    # Keras asks TensorFlow for the shape of every tensor, an operation of its own, even where nothing is unknown.
    if getattr(x.shape, "rank", 0) is not None and all(size is not None for size in x.shape):
        return tuple(x.shape)
    return tuple(ops.shape(x))


def slice_axis(x: Tensor, axis: int, start: Size, stop: Size) -> Tensor:
    """Returns `x[..., start:stop, ...]` along the (negative) `axis`; the bounds may be tensors, but must lie inside."""
    # Not by indexing: TensorFlow's gradient of that costs more than the attention around it.
    sizes = list(shape(x))
    if is_known_zero(start) and isinstance(stop, int) and isinstance(sizes[axis], int) and sizes[axis] == stop:
        return x
    begins = [0] * len(sizes)
    begins[axis], sizes[axis] = start, stop - start
    return ops.slice(x, begins, sizes)


def pad_axis(x: Tensor, axis: int, before: Size, after: Size) -> Tensor:
    """Returns `x` with `before` and `after` zeros (False) on the (negative) `axis`; both may be tensors."""
    if is_known_zero(before) and is_known_zero(after):
        return x
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, after)
    return ops.pad(x, widths)


def shift_left(x: Tensor, axis: int) -> Tensor:
    """Returns the rows of the next positions along a negative `axis`, zeros after the last."""
    return pad_axis(slice_axis(x, axis, 1, shape(x)[axis]), axis, 0, 1)


def shift_right(x: Tensor, axis: int, first: int = 0) -> Tensor:
    """Returns the rows of the positions before along a negative `axis`, filled with `first` before the first."""
    moved = pad_axis(slice_axis(x, axis, 0, shape(x)[axis] - 1), axis, 1, 0)
    if first == 0:
        return moved
    ends = [-1 if i == len(x.shape) + axis else 1 for i in range(len(x.shape))]
    return ops.where(ops.reshape(arange(shape(x)[axis]), ends) == 0, first, moved)


def is_known_zero(number: Size) -> bool:
    """Returns whether a length is known to be zero; a tensor is not known."""
    return isinstance(number, int) and number == 0


def are_known(*sizes: Size) -> bool:
    """Returns whether sizes are integers: neither tensors nor what stands for a size while JAX exports."""
    return all(isinstance(size, int) for size in sizes)


def in_range(index: Tensor, length: Size) -> Tensor:
    """Returns an int tensor with what lies outside 0 .. length - 1 at the nearer end of it."""
    # Not by `ops.clip`: LiteRT's converter takes one to 0 .. 6 for an activation, which it has for floats alone.
    return ops.minimum(ops.maximum(index, 0), length - 1)


def max_over(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """Compute the maximum over an axis, also of an empty batch, which `keras.ops.max` refuses in eager TensorFlow."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    lowest = float("-inf") if "float" in dtype else np.iinfo(dtype).min
    return ops.max(x, axis=axis, keepdims=keepdims, initial=lowest)


def max_size(one: Size, other: Size) -> Size:
    """Returns the larger of two sizes."""
    if ops.is_tensor(one) or ops.is_tensor(other):
        return ops.maximum(one, other)
    return _chosen(max, one, other)


def at_least_zero(number: Size) -> Size:
    """Returns `max(number, 0)` of a size."""
    return max_size(number, 0)


def min_size(number: Size, limit: Size) -> Size:
    """Returns `min(number, limit)` of two sizes."""
    if ops.is_tensor(number) or ops.is_tensor(limit):
        return ops.minimum(number, limit)
    return _chosen(min, number, limit)


def _chosen(choose, one, other):
    """Returns the larger or smaller of two sizes; those that JAX does not know while it exports choose themselves."""
    one, other = (other, one) if isinstance(one, int) else (one, other)
    return choose(one, other) if isinstance(one, int) else getattr(one, choose.__name__)(other)


def split(x: Tensor, block_size: int, axis: int, num_blocks: Size) -> Tensor:
    """Cuts an axis into `num_blocks` blocks, padding the end with zeros and dropping what is too long.

    Args:
        x: tensor (..., T, ...).
        block_size: positions in a block, an integer.
        axis: the axis of length T, negative.
        num_blocks: G, an integer or a scalar tensor.

    Returns:
        Tensor (..., G, block_size, ...).
    """
    length, total = shape(x)[axis], num_blocks * block_size
    x = slice_axis(pad_axis(x, axis, 0, max_size(total - length, 0)), axis, 0, total)
    sizes = shape(x)
    return ops.reshape(x, sizes[:axis] + (num_blocks, block_size) + sizes[len(sizes) + axis + 1 :])


def join(x: Tensor, axis: int, length: Size) -> Tensor:
    """Undoes `split`: merges the axes (`axis` - 1, `axis`) and keeps the first `length` positions.

    Args:
        x: tensor (..., G, t, ...).
        axis: the axis of the positions in a block, negative.
        length: positions to keep, an integer or a scalar tensor.

    Returns:
        Tensor (..., length, ...).
    """
    sizes = shape(x)
    end = len(sizes) + axis
    num_blocks, block_size = sizes[end - 1], sizes[end]
    x = ops.reshape(x, sizes[: end - 1] + (num_blocks * block_size,) + sizes[end + 1 :])
    return slice_axis(x, axis, 0, length)


def arange(length: Size) -> Tensor:
    """Returns 0 .. length - 1 as int32: a NumPy constant where the length is known, else a tensor."""
    return np.arange(length, dtype="int32") if isinstance(length, int) else ops.arange(length, dtype="int32")


def find_top_k(x: Tensor, k: int, sorted: bool = False) -> tuple[Tensor, Tensor]:
    """Find the k largest numbers of the last axis, of equal ones the earlier.

    The result of `keras.ops.top_k`. A program of JAX with unknown sizes is exported: TensorFlow cannot load JAX's
    operation, so the program sorts instead, which takes several times as long. There -0 equals 0, and NaN comes last.

    Args:
        x: numbers (..., T); integers must exceed the smallest value of their dtype.
        k: at most T.
        sorted: whether the largest must come first. Default False: any order.

    Returns:
        Pair of the numbers (..., k) and their int32 positions (..., k).
    """
    if keras.backend.backend() != "jax" or are_known(*x.shape):
        found, positions = ops.top_k(x, k, sorted=sorted)
        return found, ops.cast(positions, "int32")
    positions = ops.cast(ops.argsort(-x, axis=-1)[..., :k], "int32")
    return ops.take_along_axis(x, positions, axis=-1), positions


def matmul_last_axis(x: Tensor, matrix: Tensor) -> Tensor:
    """Returns the product of the last axis with a matrix: (..., H) and (H, R) to (..., R)."""
    sizes = shape(x)
    product = ops.matmul(ops.reshape(x, (-1, sizes[-1])), matrix)
    return ops.reshape(product, (*sizes[:-1], matrix.shape[-1]))


def min_if_known(size: Size, limit: Size) -> Size:
    """Returns a number of slots, or the limit where that is known to be less."""
    return min(size, limit) if are_known(size, limit) else size


def merge_heads(x: Tensor) -> Tensor:
    """Returns heads (B, N, T, H) as a single one, (B, 1, T, N H)."""
    batch, heads, length, size = shape(x)
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, 1, length, heads * size))


def unmerge_heads(x: Tensor, num_heads: int) -> Tensor:
    """Returns a single head (B, 1, T, N H) as `num_heads` ones, (B, N, T, H): the inverse of `merge_heads`."""
    batch, _, length, size = shape(x)
    return ops.transpose(ops.reshape(x, (batch, length, num_heads, size // num_heads)), (0, 2, 1, 3))
