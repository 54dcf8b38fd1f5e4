"""Random bits as a function of keys and counters alone, the same on every backend and for every shape."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.types import Seed, Tensor

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def derived_seed(seed: int | None, *use: int) -> int | None:
    """Return the seed of one of several uses of a seed, an integer in [0, 2**31); None for None.

    Seeds derived from two seeds, or for two uses, are independent. A sum would not be: use 1 of seed 0 would have the
    seed of use 0 of seed 1, and a model of seed 1 weights of that of seed 0.

    Args:
        seed: integer, 0 or more, or None.
        *use: numbers of the use, as of a block and a layer in it.
    """
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=use).generate_state(1)[0]) >> 1


def uint32(number: int) -> Tensor:
    """Returns an integer as a uint32 scalar; as a plain one it would be int32, and its sum with uint32 int64."""
    return ops.convert_to_tensor(number, dtype="uint32")


def threefry(key_0: Tensor, key_1: Tensor, counter_0: Tensor, counter_1: Tensor) -> tuple[Tensor, Tensor]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): 64 random bits for each key and counter.

    Args:
        key_0, key_1, counter_0, counter_1: uint32 tensors whose shapes broadcast; int64 on torch, which Keras gives no
            uint32, and then modulo 2**32.

    Returns:
        Two tensors of the broadcast shape and that dtype.
    """
    key_0, key_1 = _wrapped(key_0), _wrapped(key_1)
    schedule = (key_0, key_1, _xor(_xor(key_0, key_1), uint32(_PARITY)))
    x, y = _wrapped(counter_0 + key_0), _wrapped(counter_1 + key_1)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = _wrapped(x + y)
            high = _wrapped(ops.left_shift(y, uint32(rotation)))
            y = _xor(x, ops.bitwise_or(high, ops.right_shift(y, uint32(32 - rotation))))
        x = _wrapped(x + schedule[(group + 1) % 3])
        y = _wrapped(y + schedule[(group + 2) % 3] + uint32(group + 1))
    return x, y


def bits_to_uniform(bits: Tensor) -> Tensor:
    """Returns uint32 bits as float32 from the 2**23 midpoints of (0, 1): neither 0 nor 1 occurs."""
    # 23 bits and a half need 24 bits, which is all a float32 holds: with one more, the largest would round to 1.
    whole = ops.cast(ops.right_shift(bits, uint32(9)), "int32")
    return (ops.cast(whole, "float32") + 0.5) * 2.0**-23


def pair_uniform(seed: Seed, queries: Tensor, keys: Tensor) -> Tensor:
    """Draws a number for each pair of query and key that depends on token positions, not storage order.

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
    asked = threefry(key_0, key_1, rows, ops.cast(queries, "uint32"))[0]
    answering = threefry(key_0, key_1, rows, ops.cast(keys, "uint32"))[1]
    bits = _wrapped(asked[..., :, None] + answering[..., None, :])
    # Two words for each token and a few steps for each pair: the whole of Threefry there would outweigh the attention.
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = _wrapped(_xor(bits, ops.right_shift(bits, uint32(shift))) * uint32(factor))
    return bits_to_uniform(_xor(bits, ops.right_shift(bits, uint32(16))))


def _seed_pair(seed):
    if isinstance(seed, keras.random.SeedGenerator):
        drawn = seed.next()
        return drawn[0], drawn[1]
    return uint32(seed % 2**32), uint32(0)


def _wrapped(x):
    """Returns sums, products and shifts of 32 bits modulo 2**32, also where they are held in 64 bits."""
    return x if keras.backend.standardize_dtype(x.dtype) == "uint32" else ops.bitwise_and(x, 2**32 - 1)


def _xor(x, y):
    return ops.bitwise_xor(x, y)


def random_groups(positions: Tensor, num_heads: int, num_groups: int, seed: int) -> Tensor:
    """Returns random groups of positions (B, T), int32 (B, N, T): the paper's random ablation.

    A hash of head, position and seed and not a draw, so that a position keeps its group whatever the length, as
    decoding needs.
    """
    heads = ops.cast(ops.arange(num_heads, dtype="int32"), "uint32")[None, :, None]
    positions = ops.cast(positions, "uint32")[:, None, :]
    bits = threefry(uint32(seed % 2**32), uint32(0), heads, positions)[0]
    return ops.cast(ops.right_shift(bits, uint32(1)), "int32") % num_groups
