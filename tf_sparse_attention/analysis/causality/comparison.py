"""Comparison of outputs by position, in parts, so that large outputs are never copied as a whole."""

from collections.abc import Iterator

import keras
import numpy as np

from tf_sparse_attention.types import Tensor

_PART = 2**22  # numbers of an output compared at once


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a float32 or float64 array, whichever holds its values exactly."""
    array = keras.ops.convert_to_numpy(tensor)
    return array.astype(_exact_dtype(array))


def change(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the change at each position, in units of the largest finite magnitude of `old`.

    Args:
        old: array (B, T, ...).
        new: array (B, t, ...) with t <= T, of the same or a shorter sequence.

    Returns:
        Array (t,). Equal infinities count as no change, a NaN as an infinite change.
    """
    scale = max((_scale(part) for _, part in _parts(old)), default=0) or 1
    changes = np.zeros(new.shape[1])
    with np.errstate(invalid="ignore"):
        for positions, part in _parts(new):
            before = _as_exact(old[:, positions])
            largest = largest_by_position(before - part)
            if np.isnan(largest).any():  # from equal infinities, or from NaN
                difference = np.where(before == part, 0, before - part)
                largest = largest_by_position(np.where(np.isnan(difference), np.inf, difference))
            changes[positions] = largest / scale
    return changes


def change_by_head(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the change of each head: (B, T, N, H) -> (N,), in units of the largest finite magnitude of `old`."""
    return change(np.swapaxes(old, 1, 2), np.swapaxes(new, 1, 2))


def has_nan(array: np.ndarray) -> bool:
    """Return whether an array (B, T, ...) has NaN."""
    return any(np.isnan(part).any() for _, part in _parts(array))


def largest_by_position(array: np.ndarray) -> np.ndarray:
    """Return the largest magnitude at each position: (B, T, ...) -> (T,)."""
    axes = 0, *range(2, array.ndim)
    return np.maximum(array.max(axis=axes), -array.min(axis=axes))


def _exact_dtype(array):
    half = str(array.dtype) in ("float16", "bfloat16")
    return "float32" if half else np.result_type(array.dtype, "float32")


def _as_exact(array):
    """Return an array in the dtype of `to_numpy`, without a copy if it already has this dtype."""
    return array.astype(_exact_dtype(array), copy=False)


def _scale(part):
    largest = np.maximum(part.max(initial=0), -part.min(initial=0))
    return largest if np.isfinite(largest) else np.abs(part[np.isfinite(part)]).max(initial=0)


def _parts(array: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of positions with their values in floating point, at most `_PART` values at once if possible."""
    size = max(1, _PART * array.shape[1] // max(array.size, 1))
    for begin in range(0, array.shape[1], size):
        positions = slice(begin, min(begin + size, array.shape[1]))
        yield positions, _as_exact(array[:, positions])
