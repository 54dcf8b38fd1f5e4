"""A short causal convolution over the keys of a sequence, each channel for itself."""

from keras import ops

from tf_sparse_attention.ops.blocks import pad_axis, shape, slice_axis
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.types import Tensor


def convolve_keys(key: Tensor, kernel: Tensor, masks: TokenMasks = TokenMasks()) -> Tensor:
    """Returns keys with what a causal convolution makes of them and of the keys before them.

    k_i + silu(sum_l w_l k_{i-l}), each channel for itself, over the keys i - l that exist and are of key i's document.
    O(T K) for each channel.

    Args:
        key: (B, M, S, H).
        kernel: (K, M, H); row l is for the key l positions before.
        masks: a `TokenMasks`; hidden keys reach no other one.
    """
    exists, documents = masks.key_mask, masks.key_segments
    shown = key if exists is None else ops.where(exists[:, None, :, None], key, 0)
    total = shown * kernel[0][:, None]
    for distance in range(1, kernel.shape[0]):
        before = _moved(shown, -2, distance)
        if documents is not None:
            same = _moved(documents, -1, distance) == documents
            before = ops.where(same[:, None, :, None], before, 0)
        total = total + before * kernel[distance][:, None]
    return key + ops.silu(total)


def convolve_next(key: Tensor, before: Tensor, kernel: Tensor) -> Tensor:
    """Returns the key (B, M, 1, H) of the next token as `convolve_keys` does, of the keys before it.

    Args:
        key: (B, M, 1, H).
        before: (B, M, K - 1, H), those 1, 2 .. positions before, zeros where there is none.
        kernel: (K, M, H).
    """
    keys = ops.concatenate([key, ops.cast(before, key.dtype)], axis=2)
    return key + ops.silu(ops.sum(keys * ops.swapaxes(kernel, 0, 1), axis=2, keepdims=True))


def _moved(x, axis, distance):
    """Returns what is `distance` positions before along a negative axis, zeros where nothing is."""
    return slice_axis(pad_axis(x, axis, distance, 0), axis, 0, shape(x)[axis])
