"""Counter-based random numbers: functions of keys and counters, equal on every backend and for every shape.

`keras.random` draws a whole batch from one seed, so a row's numbers depend on the batch size, and seeds must be known
at compile time. Here, keys are tensors. `row_keys` gives each row of a batch its own key.
"""

import numbers

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.types import Seed, Tensor

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def derived_seed(seed: int | None, *use: int) -> int | None:
    """Derive an independent seed from a seed and the index of its use, an integer in [0, 2**31); None for None.

    A sum of seed and index would not be independent: use 1 of seed 0 would equal use 0 of seed 1, so that models with
    different seeds would share weights.

    Args:
        seed: integer, 0 or more, or None.
        *use: indices of the use, for example of a block and of a layer in it.
    """
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=use).generate_state(1)[0]) >> 1


def uint32(number: int) -> Tensor:
    """Convert an integer to a uint32 scalar. A plain integer is int32, and its sum with uint32 is int64."""
    return ops.convert_to_tensor(number, dtype="uint32")


def threefry(key_0: Tensor, key_1: Tensor, counter_0: Tensor, counter_1: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Threefry-2x32 with 20 rounds (Salmon et al. 2011): 64 random bits per key and counter.

    Args:
        key_0, key_1, counter_0, counter_1: uint32 tensors whose shapes broadcast. On torch, where Keras has no uint32,
            int64 modulo 2**32.

    Returns:
        Two tensors of the broadcast shape and the same dtype.
    """
    key_0, key_1 = _wrapped(key_0), _wrapped(key_1)
    schedule = (key_0, key_1, ops.bitwise_xor(ops.bitwise_xor(key_0, key_1), uint32(_PARITY)))
    x, y = _wrapped(counter_0 + key_0), _wrapped(counter_1 + key_1)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = _wrapped(x + y)
            high = _wrapped(ops.left_shift(y, uint32(rotation)))
            y = ops.bitwise_xor(x, ops.bitwise_or(high, ops.right_shift(y, uint32(32 - rotation))))
        x = _wrapped(x + schedule[(group + 1) % 3])
        y = _wrapped(y + schedule[(group + 2) % 3] + uint32(group + 1))
    return x, y


def bits_to_uniform(bits: Tensor) -> Tensor:
    """Convert uint32 bits to float32 at 2**23 midpoints of (0, 1); neither 0 nor 1 occurs."""
    # 23 bits plus one half need the 24 bits of a float32: with more, the largest number would round to 1.
    whole = ops.cast(ops.right_shift(bits, uint32(9)), "int32")
    return (ops.cast(whole, "float32") + 0.5) * 2.0**-23


def pair_uniform(seed: Seed, queries: Tensor, keys: Tensor) -> Tensor:
    """Draw a uniform number per pair of query and key that depends on token positions, not on slots.

    Args:
        seed: integer or `keras.random.SeedGenerator`.
        queries: int32 (B, N, ..., t), the position of each query.
        keys: int32 (B, N, ..., s), the position of each key.

    Returns:
        Float32 (B, N, ..., t, s) in (0, 1).
    """
    sizes = ops.shape(queries)
    rows = ops.reshape(
        ops.arange(sizes[0] * sizes[1], dtype="int32"), (sizes[0], sizes[1]) + (1,) * (len(queries.shape) - 2)
    )
    key_0, key_1 = (ops.cast(part, "uint32") for part in _seed_pair(seed))
    rows = ops.cast(rows, "uint32")
    query_bits = threefry(key_0, key_1, rows, ops.cast(queries, "uint32"))[0]
    key_bits = threefry(key_0, key_1, rows, ops.cast(keys, "uint32"))[1]
    bits = _wrapped(query_bits[..., :, None] + key_bits[..., None, :])
    # Threefry per token and a cheap mixing per pair: Threefry per pair would cost more than the attention.
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = _wrapped(ops.bitwise_xor(bits, ops.right_shift(bits, uint32(shift))) * uint32(factor))
    return bits_to_uniform(ops.bitwise_xor(bits, ops.right_shift(bits, uint32(16))))


def _seed_pair(seed):
    if isinstance(seed, keras.random.SeedGenerator):
        drawn = seed.next()
        return drawn[0], drawn[1]
    return uint32(seed % 2**32), uint32(0)


def _wrapped(x):
    """Reduce integers modulo 2**32 if they are stored in 64 bits."""
    return x if keras.backend.standardize_dtype(x.dtype) == "uint32" else ops.bitwise_and(x, 2**32 - 1)


def random_groups(positions: Tensor, num_heads: int, num_groups: int, seed: int) -> Tensor:
    """Return random groups of positions (B, T), int32 (B, N, T): the random ablation of Roy et al. 2021.

    The group is a hash of seed, head and position. It does not depend on the length, as decoding requires.
    """
    heads = ops.cast(ops.arange(num_heads, dtype="int32"), "uint32")[None, :, None]
    positions = ops.cast(positions, "uint32")[:, None, :]
    bits = threefry(uint32(seed % 2**32), uint32(0), heads, positions)[0]
    return ops.cast(ops.right_shift(bits, uint32(1)), "int32") % num_groups


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
