"""One element of a permutation without the others, as `tf.random.experimental.index_shuffle` computes it, in NumPy."""

import functools

import numpy as np

PUBLIC_KEY = 498247692  # the first of the three keys where `tf.random.experimental.index_shuffle` is given two
MIN_BITS, MAX_BITS = 16, 64  # of the numbers that are encrypted
CONSTANT = 0xFFFFFFFC ^ (0x7369F885192C0EF5 & 1)  # of the fourth key, in the one step of the schedule that is needed
LOW = 0xFFFFFFFF


def shuffled_index(index: np.ndarray, seed: int, epoch: np.ndarray, size: int) -> np.ndarray:
    """Returns `tf.random.experimental.index_shuffle(index, [seed, epoch], size - 1)` with an epoch for each index.

    A cycle-walking cipher: numbers of an even number of bits are encrypted by four rounds of a Feistel network, again
    until they are below `size`. Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", with the
    rounds of Simon (Beaulieu et al. 2013, section 3).
    Note: as in TensorFlow, a size of 2^n + 1 with an even n from 16 on has one number twice and another one never.

    Args:
        index: int64 (B,) in [0, size).
        seed: integer, of which the low 32 bits count.
        epoch: int64 (B,), likewise.
        size: length of the permutation.

    Returns:
        int64 (B,): the position of each index in the permutation of its epoch.
    """
    index, epoch, seed = np.asarray(index, "int64"), np.asarray(epoch, "int64") & LOW, seed & LOW
    if size == 1:
        return np.zeros_like(index)
    bits = int(np.ceil(np.log2(size - 1)))
    bits = min(max(bits + bits % 2, MIN_BITS), MAX_BITS)
    found = np.empty_like(index)
    for number in np.unique(epoch).tolist():
        chosen = epoch == number
        if bits == MIN_BITS:
            found[chosen] = _small_permutation(seed, number, size)[index[chosen]]
        else:
            found[chosen] = _walked(index[chosen], size, _Cipher(bits, seed, number))
    return found


class _Cipher:
    """Encrypts numbers of so many bits."""

    def __init__(self, bits, seed, epoch):
        self._bits = np.uint64(bits // 2)  # of half a number, kept in the low bits of uint64
        self._mask = np.uint64((1 << bits // 2) - 1)
        first, second, third, constant = (np.uint64(x) & self._mask for x in (PUBLIC_KEY, seed, epoch, CONSTANT))
        fourth = constant ^ first ^ self._rotated(third, -3) ^ self._rotated(third, -4)
        self._rounds = (first, second), (third, fourth)

    def __call__(self, numbers):
        numbers = numbers.astype("uint64")
        left, right = (numbers >> self._bits) & self._mask, numbers & self._mask
        for first, second in self._rounds:
            left = left ^ self._mixed(right) ^ first
            right = right ^ self._mixed(left) ^ second
        return ((left << self._bits) | right).astype("int64")

    def _rotated(self, x, by):
        by = np.uint64(by % int(self._bits))
        return ((x << by) | (x >> (self._bits - by))) & self._mask

    def _mixed(self, x):
        return (self._rotated(x, 1) & self._rotated(x, 8)) ^ self._rotated(x, 2)


def _walked(numbers, size, cipher):
    """Returns where numbers come below `size`; at most four steps on average, since bits are as few as can be."""
    found = cipher(numbers)
    beyond = np.flatnonzero((found < 0) | (found >= size))
    while len(beyond):
        found[beyond] = cipher(found[beyond])
        beyond = beyond[(found[beyond] < 0) | (found[beyond] >= size)]
    return found


@functools.lru_cache(maxsize=8)
def _small_permutation(seed, epoch, size):
    """Returns a whole permutation: of few among 2^16 numbers a walk is long, but all of them visit each number once."""
    step = _Cipher(MIN_BITS, seed, epoch)(np.arange(2**MIN_BITS)).tolist()
    found = []
    for number in range(min(size, 2**MIN_BITS)):
        number = step[number]
        while number >= size:
            number = step[number]
        found.append(number)
    return np.array(found + found[: size - len(found)], "int64")
