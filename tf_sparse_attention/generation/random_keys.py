"""Random numbers as a function of keys alone: the same on every backend, one key a row.

`keras.random` draws a whole batch from one seed, so a row's numbers would depend on the size of its batch, and its
seeds must be known before a program is compiled. Here a key is a tensor, and each row has its own.
"""

import numbers

from keras import ops

from tf_sparse_attention.ops.random_bits import bits_to_uniform, threefry, uint32
from tf_sparse_attention.types import Tensor


def row_keys(seed: int | Tensor, batch_size: int | Tensor) -> Tensor:
    """Make one key for each row of a batch.

    Args:
        seed: integer, a scalar integer tensor, or one (B,) seed a row; negative ones count modulo 2**32. Keys (B, 2)
            are returned as they are.
        batch_size: B, an integer or a scalar tensor.

    Returns:
        uint32 (B, 2): (seed, row) for one seed, whatever the size of the batch; (seed of the row, 0) for one a row, so
        that equal seeds give equal keys whatever the row.
    """
    seed = uint32(int(seed) % 2**32) if isinstance(seed, numbers.Integral) else ops.cast(seed, "uint32")
    if len(seed.shape) == 2:
        return seed
    rows = ops.cast(ops.arange(batch_size, dtype="int32"), "uint32")
    if len(seed.shape) == 1:
        return ops.stack([seed, ops.zeros_like(rows)], axis=-1)
    return ops.stack([ops.broadcast_to(seed, ops.shape(rows)), rows], axis=-1)


def fold_in(keys: Tensor, data: Tensor) -> Tensor:
    """Derives new keys, independent of the old ones and of those for other `data`.

    Args:
        keys: uint32 (B, 2).
        data: int32 (B,), for instance the position to draw for.

    Returns:
        uint32 (B, 2).
    """
    data = ops.cast(data, "uint32")
    # The first counter word sets these keys apart from the numbers drawn with the same key by `uniform`.
    return ops.stack(threefry(keys[:, 0], keys[:, 1], ops.full_like(data, 2**32 - 1), data), axis=-1)


def uniform(keys: Tensor, size: int | Tensor) -> Tensor:
    """Draw numbers that depend on the row's key and their index alone.

    Args:
        keys: uint32 (B, 2).
        size: numbers in a row, an integer or a scalar tensor.

    Returns:
        float32 (B, size), evenly from the 2**23 midpoints of (0, 1): neither 0 nor 1 occurs.
    """
    index = ops.cast(ops.arange(size, dtype="int32"), "uint32")[None, :]
    bits, _ = threefry(keys[:, :1], keys[:, 1:], index, ops.zeros_like(index))
    return bits_to_uniform(bits)
