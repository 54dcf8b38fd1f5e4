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
    if is_zero(start) and isinstance(stop, int) and isinstance(sizes[axis], int) and sizes[axis] == stop:
        return x
    begins = [0] * len(sizes)
    begins[axis], sizes[axis] = start, stop - start
    return ops.slice(x, begins, sizes)


def pad_axis(x: Tensor, axis: int, before: Size, after: Size) -> Tensor:
    """Returns `x` with `before` and `after` zeros (False) on the (negative) `axis`; both may be tensors."""
    if is_zero(before) and is_zero(after):
        return x
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, after)
    return ops.pad(x, widths)


def shift_back(x: Tensor, axis: int) -> Tensor:
    """Returns the rows of the next positions along a negative `axis`, zeros after the last."""
    return pad_axis(slice_axis(x, axis, 1, shape(x)[axis]), axis, 0, 1)


def shift_forward(x: Tensor, axis: int, first: int = 0) -> Tensor:
    """Returns the rows of the positions before along a negative `axis`, filled with `first` before the first."""
    moved = pad_axis(slice_axis(x, axis, 0, shape(x)[axis] - 1), axis, 1, 0)
    if first == 0:
        return moved
    ends = [-1 if i == len(x.shape) + axis else 1 for i in range(len(x.shape))]
    return ops.where(ops.reshape(positions_of(shape(x)[axis]), ends) == 0, first, moved)


def is_zero(number: Size) -> bool:
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


def larger(one: Size, other: Size) -> Size:
    """Returns the larger of two sizes."""
    if ops.is_tensor(one) or ops.is_tensor(other):
        return ops.maximum(one, other)
    return _chosen(max, one, other)


def at_least_zero(number: Size) -> Size:
    """Returns `max(number, 0)` of a size."""
    return larger(number, 0)


def no_more_than(number: Size, limit: Size) -> Size:
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
    x = slice_axis(pad_axis(x, axis, 0, at_least_zero(total - length)), axis, 0, total)
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


def positions_of(length: Size) -> Tensor:
    """Returns 0 .. length - 1 as int32: a NumPy constant where the length is known, else a tensor."""
    return np.arange(length, dtype="int32") if isinstance(length, int) else ops.arange(length, dtype="int32")
