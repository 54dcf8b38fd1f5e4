"""Short depthwise causal convolution over the keys of a sequence."""

from keras import ops

from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.shapes import pad_axis, shape, slice_axis
from tf_sparse_attention.types import Tensor


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
