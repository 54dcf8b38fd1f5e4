"""Random numbers as a function of keys alone: the same on every backend, one key a row.

`keras.random` draws a whole batch from one seed, so a row's numbers would depend on the size of its batch, and its
seeds must be known before a program is compiled. Here a key is a tensor, and each row has its own.
"""

import numbers

from keras import ops

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def row_keys(seed, batch_size):
    """Makes one key for each row of a batch.

    Args:
        seed: integer, a scalar integer tensor, or one (B,) seed a row; negative ones count modulo 2**32. Keys (B, 2)
            are returned as they are.
        batch_size: B, an integer or a scalar tensor.

    Returns:
        uint32 (B, 2): (seed, row) for one seed, whatever the size of the batch; (seed of the row, 0) for one a row, so
        that equal seeds give equal keys wherever the rows stand.
    """
    seed = _word(int(seed) % 2**32) if isinstance(seed, numbers.Integral) else ops.cast(seed, "uint32")
    if len(seed.shape) == 2:
        return seed
    rows = ops.cast(ops.arange(batch_size, dtype="int32"), "uint32")
    if len(seed.shape) == 1:
        return ops.stack([seed, ops.zeros_like(rows)], axis=-1)
    return ops.stack([ops.broadcast_to(seed, ops.shape(rows)), rows], axis=-1)


def fold_in(keys, data):
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


def uniform(keys, size):
    """Draws numbers that depend on the row's key and their index alone.

    Args:
        keys: uint32 (B, 2).
        size: numbers in a row, an integer or a scalar tensor.

    Returns:
        float32 (B, size), evenly from the 2**23 midpoints of (0, 1): neither 0 nor 1 occurs.
    """
    index = ops.cast(ops.arange(size, dtype="int32"), "uint32")[None, :]
    bits, _ = threefry(keys[:, :1], keys[:, 1:], index, ops.zeros_like(index))
    # 23 bits and a half need 24 bits, which is all a float32 holds: with one more, the largest would round to 1.
    whole = ops.cast(ops.right_shift(bits, _word(9)), "int32")
    return (ops.cast(whole, "float32") + 0.5) * 2.0**-23


def threefry(key_0, key_1, counter_0, counter_1):
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): 64 random bits for each key and counter.

    Args:
        key_0, key_1, counter_0, counter_1: uint32 tensors whose shapes broadcast.

    Returns:
        Two uint32 tensors of the broadcast shape.
    """
    schedule = (key_0, key_1, _xor(_xor(key_0, key_1), _word(_PARITY)))
    x, y = counter_0 + key_0, counter_1 + key_1
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = _xor(x, ops.bitwise_or(ops.left_shift(y, _word(rotation)), ops.right_shift(y, _word(32 - rotation))))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + _word(group + 1)
    return x, y


def _xor(x, y):
    return ops.bitwise_xor(x, y)


def _word(number):
    # A plain integer would be taken for int32, and the sum with uint32 for int64.
    return ops.convert_to_tensor(number, dtype="uint32")
