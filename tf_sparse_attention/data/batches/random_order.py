"""Random permutations that are a pure function of a seed and an epoch, and single elements of them."""

import functools

import numpy as np

ITEMS, BATCHES, WINDOWS = 0, 1, 2  # streams: orders of one seed and epoch that are independent
LISTED = 2**16  # length up to which a permutation is made as a whole
NUM_ROUNDS = 6


def random_order(seed: int, epoch: int, stream: int, count: int) -> np.ndarray:
    """Return a random permutation of `count` numbers, int64 (count,), the same on every machine.

    Orders of two seeds, epochs or streams are independent. The draws are raw bits of NumPy's Philox generator (Salmon
    et al. 2011), which NumPy promises never to change, unlike `Generator.permutation`.

    Args:
        seed: integer in [0, 2**63).
        epoch: integer in [0, 2**63).
        stream: number of the order among those of one seed and epoch.
        count: length of the permutation.
    """
    return np.argsort(_random_bits(seed, epoch, stream, count), kind="stable")


def shuffled_index(index: np.ndarray, seed: int, epoch: np.ndarray, size: int) -> np.ndarray:
    """Return elements of random permutations, each of its own epoch, without listing a long permutation.

    Orders of two seeds or epochs are independent. A permutation of more than 2^16 numbers is a cycle-walking cipher:
    six rounds of a Feistel network encrypt numbers of as many bits as `size - 1` has, again until the result is below
    `size`, which takes less than two times on average. Source: Black and Rogaway 2002, "Ciphers with arbitrary finite
    domains".
    Note: differs from `tf.random.experimental.index_shuffle`, whose orders of neighbouring seeds and epochs have
    correlations up to 0.76, and which is no permutation for a size of 2^n + 1 with an even n from 16 on.

    Args:
        index: int64 (B,) in [0, size).
        seed: integer in [0, 2**63).
        epoch: int64 (B,) in [0, 2**63).
        size: length of each permutation.

    Returns:
        int64 (B,): the number at each index in the permutation of its epoch.
    """
    index, epoch = np.asarray(index, "int64"), np.asarray(epoch, "int64")
    found = np.empty_like(index)
    for number in np.unique(epoch).tolist():
        chosen = epoch == number
        if size <= LISTED:
            found[chosen] = _listed(seed, number, size)[index[chosen]]
        else:
            found[chosen] = _walked(index[chosen], size, _random_bits(seed, number, WINDOWS, NUM_ROUNDS))
    return found


def _random_bits(seed, epoch, stream, count):
    # The stream is in the highest word of the counter: streams of one key would meet after 2^192 draws.
    return np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, stream]).random_raw(count)


@functools.lru_cache(maxsize=8)
def _listed(seed, epoch, size):
    return random_order(seed, epoch, WINDOWS, size)


def _walked(numbers, size, keys):
    """Encrypt each number repeatedly until it is below `size`, which ends because the cipher is a permutation."""
    bits = (size - 1).bit_length()
    found = _encrypted(numbers, bits, keys)
    beyond = np.flatnonzero(found >= size)
    while len(beyond):
        found[beyond] = _encrypted(found[beyond], bits, keys)
        beyond = beyond[found[beyond] >= size]
    return found


def _encrypted(numbers, bits, keys):
    """Return a permutation of the numbers of so many bits, which may be an odd number: halves then differ in size."""
    low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    numbers = numbers.astype("uint64")
    left, right = numbers >> low, numbers & np.uint64((1 << int(low)) - 1)
    for even, odd in keys.reshape(-1, 2):
        left = left ^ (_mixed(right ^ even) >> (np.uint64(64) - high))
        right = right ^ (_mixed(left ^ odd) >> (np.uint64(64) - low))
    return ((left << low) | right).astype("int64")


def _mixed(x):
    """Return numbers whose bits each depend on all bits of `x`: the last step of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
