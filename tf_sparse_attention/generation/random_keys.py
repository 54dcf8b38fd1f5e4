"""Random numbers as a pure function of keys: the same on every backend, with one key per row.

`keras.random` draws a whole batch from one seed, so a row's numbers depend on the batch size, and seeds must be known
at compile time. Here, keys are tensors, and each row has its own key.
"""

import numbers

from keras import ops

from tf_sparse_attention.ops.random_bits import bits_to_uniform, threefry, uint32
from tf_sparse_attention.types import Tensor


def row_keys(seed: int | Tensor, batch_size: int | Tensor) -> Tensor:
    """Create one key per row of a batch.

    Args:
        seed: integer, scalar integer tensor, or int (B,), one seed per row; negative seeds count modulo 2**32.
            Keys, uint32 (B, 2), are returned unchanged.
        batch_size: B, an integer or a scalar tensor.

    Returns:
        uint32 (B, 2). For one seed: (seed, row), independent of the batch size. For one seed per row: (seed of the row,
        0), so equal seeds give equal keys in any row.
    """
    seed = uint32(int(seed) % 2**32) if isinstance(seed, numbers.Integral) else ops.cast(seed, "uint32")
    if len(seed.shape) == 2:
        return seed
    rows = ops.cast(ops.arange(batch_size, dtype="int32"), "uint32")
    if len(seed.shape) == 1:
        return ops.stack([seed, ops.zeros_like(rows)], axis=-1)
    return ops.stack([ops.broadcast_to(seed, ops.shape(rows)), rows], axis=-1)


def fold_in(keys: Tensor, data: Tensor) -> Tensor:
    """Derive new keys that are independent of `keys` and of the keys for other `data`.

    Args:
        keys: uint32 (B, 2).
        data: int32 (B,), for instance the position of the sampled token.

    Returns:
        uint32 (B, 2).
    """
    data = ops.cast(data, "uint32")
    # The first counter word never occurs in `uniform`, so these keys differ from its numbers for the same key.
    return ops.stack(threefry(keys[:, 0], keys[:, 1], ops.full_like(data, 2**32 - 1), data), axis=-1)


def uniform(keys: Tensor, size: int | Tensor) -> Tensor:
    """Draw uniform random numbers that depend only on the row's key and their index.

    Args:
        keys: uint32 (B, 2).
        size: numbers per row, an integer or a scalar tensor.

    Returns:
        float32 (B, size), uniform on 2**23 midpoints in (0, 1), without 0 and 1.
    """
    index = ops.cast(ops.arange(size, dtype="int32"), "uint32")[None, :]
    bits, _ = threefry(keys[:, :1], keys[:, 1:], index, ops.zeros_like(index))
    return bits_to_uniform(bits)
