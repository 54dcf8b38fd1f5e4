"""Random permutations as pure functions of a seed and an epoch, and single elements of them."""

import functools

import numpy as np

ITEMS, BATCHES, WINDOWS = 0, 1, 2  # streams: independent orders of one seed and epoch
MAX_LISTED = 2**16  # maximum length of a permutation that is computed as a whole
NUM_ROUNDS = 6


def random_order(seed: int, epoch: int, stream: int, count: int) -> np.ndarray:
    """Return a random permutation of `count` numbers, int64 (count,), the same on every machine.

    Orders of different seeds, epochs (integers in [0, 2**63)) or streams are independent. Orders use raw bits of
    NumPy's Philox generator (Salmon et al. 2011), which NumPy promises never to change, unlike `Generator.permutation`.
    """
    return np.argsort(_random_bits(seed, epoch, stream, count), kind="stable")


def shuffled_index(index: np.ndarray, seed: int, epoch: np.ndarray, size: int) -> np.ndarray:
    """Return elements of the random permutations of epochs, without computing long permutations as a whole.

    Orders of different seeds or epochs are independent. A permutation of more than 2^16 numbers is a cycle-walking
    cipher. A Feistel network of six rounds encrypts numbers with as many bits as `size - 1`, repeatedly until the
    result is below `size`: less than twice on average. Source: Black and Rogaway 2002, "Ciphers with arbitrary finite
    domains". Note: `tf.random.experimental.index_shuffle` has correlations of up to 0.76 between the orders of
    adjacent seeds and epochs. For a size of 2^n + 1 with even n >= 16, its result is not a permutation.

    Args:
        index: int64 (B,) in [0, size).
        seed: integer in [0, 2**63).
        epoch: int64 (B,) in [0, 2**63).
        size: length of each permutation.

    Returns:
        int64 (B,): the number at each index in the permutation of its epoch.
    """
    index, epoch = np.asarray(index, "int64"), np.asarray(epoch, "int64")
    shuffled = np.empty_like(index)
    for number in np.unique(epoch).tolist():
        chosen = epoch == number
        if size <= MAX_LISTED:
            shuffled[chosen] = _window_order(seed, number, size)[index[chosen]]
        else:
            shuffled[chosen] = _walk_cycles(index[chosen], size, _random_bits(seed, number, WINDOWS, NUM_ROUNDS))
    return shuffled


def _random_bits(seed, epoch, stream, count):
    # With the stream in the highest word of the counter, streams overlap only after 2^192 draws.
    return np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, stream]).random_raw(count)


@functools.lru_cache(maxsize=8)
def _window_order(seed, epoch, size):
    return random_order(seed, epoch, WINDOWS, size)


def _walk_cycles(numbers, size, keys):
    """Encrypt each number repeatedly until it is below `size`. The loop ends because the cipher is a permutation."""
    bits = (size - 1).bit_length()
    results = _encrypt(numbers, bits, keys)
    beyond = np.flatnonzero(results >= size)
    while len(beyond):
        results[beyond] = _encrypt(results[beyond], bits, keys)
        beyond = beyond[results[beyond] >= size]
    return results


def _encrypt(numbers, bits, keys):
    """Permute the numbers below 2^bits. If `bits` is odd, the halves of the Feistel network differ in size."""
    low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    numbers = numbers.astype("uint64")
    left, right = numbers >> low, numbers & np.uint64((1 << int(low)) - 1)
    for even, odd in keys.reshape(-1, 2):
        left = left ^ (_mix(right ^ even) >> (np.uint64(64) - high))
        right = right ^ (_mix(left ^ odd) >> (np.uint64(64) - low))
    return ((left << low) | right).astype("int64")


def _mix(x):
    """Mix all bits of each number: the last step of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
