"""Edit distance of sequences of characters, token ids or words."""

import numpy as np
from keras import ops

from tf_sparse_attention.types import Tensor

INFINITY = 2**20  # above every distance


def edit_distance(references: Tensor, hypotheses: Tensor) -> Tensor:
    """Compute the Levenshtein distance, the minimum number of insertions, deletions and substitutions.

    Computed along the diagonals of the table of prefixes, O(U (U + W)) per row.

    Args:
        references: int (B, U), 0 for padding on the right. Or int (B, U, K): each token has K numbers, and the first
            number is 0 for padding.
        hypotheses: int (B, W) or (B, W, K), padded in the same way.

    Returns:
        int32 (B,).
    """
    references, hypotheses = (
        x if len(x.shape) == 3 else x[..., None] for x in (ops.cast(x, "int32") for x in (references, hypotheses))
    )
    # One token of padding, because a graph with unknown sizes fails for an empty sequence.
    hypotheses = ops.pad(hypotheses, [[0, 0], [0, 1], [0, 0]])
    lengths = [ops.sum(ops.cast(x[..., 0] != 0, "int32"), axis=-1) for x in (references, hypotheses)]
    num_references, num_hypotheses = ops.shape(references)[1], ops.shape(hypotheses)[1]
    number = ops.arange(num_references + 1)  # entry i of a diagonal is for the first i tokens of the reference
    is_last = number[None, :] == lengths[0][:, None]  # (B, U + 1)
    last_diagonal = lengths[0] + lengths[1]

    def step(carry, diagonal):
        before, two_before, distance = carry
        # Entry i is for the first `diagonal` - i tokens of the hypothesis. The last of these tokens is compared.
        position = ops.clip(diagonal - number[1:] - 1, 0, num_hypotheses - 1)
        compared = ops.take(hypotheses, position, axis=1)  # (B, U, K)
        differs = ops.cast(ops.any(references != compared, axis=-1), "int32")
        shifted = before[:, :-1] + 1
        substituted = two_before[:, :-1] + differs
        longer = ops.minimum(ops.minimum(before[:, 1:] + 1, shifted), substituted)
        current = ops.concatenate([before[:, :1] + 1, longer], axis=1)
        here = ops.sum(ops.where(is_last, current, 0), axis=-1)
        distance = ops.where(last_diagonal == diagonal, here, distance)
        return (current, before, distance), None

    rows = ops.zeros_like(lengths[0])
    start = rows[:, None] + ops.where(number == 0, 0, INFINITY)
    diagonals = ops.arange(1, num_references + num_hypotheses + 1)
    (_, _, distance), _ = ops.scan(step, (start, rows[:, None] + ops.full_like(start, INFINITY), rows), diagonals)
    return distance


def count_edits(references: Tensor, hypotheses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edit distance and the number of reference tokens, int32 (B,) each; arguments as in `edit_distance`."""
    references = ops.convert_to_tensor(references)
    first = references if len(references.shape) == 2 else references[..., 0]
    return edit_distance(references, hypotheses), ops.sum(ops.cast(first != 0, "int32"), axis=-1)


# Primes below 2^15.5, so that products of residues fit into int32.
MODULI = (46337, 46327, 46309, 46307)
FACTORS = (31337, 27644, 17389, 40009)


def hash_words(labels: Tensor, separator: int) -> Tensor:
    """Split rows of characters into words, and return the length and a 62-bit hash of each word.

    The hash has four polynomials of the characters modulo primes. The probability of a collision is 1 in 4e18.

    Args:
        labels: int (B, U) characters, positive, with 0 for padding on the right.
        separator: the character between words. There are no empty words between consecutive separators or at the ends.

    Returns:
        int32 (B, U, 5), words on the left. The first number is the length, 0 for padding.
    """
    characters = ops.cast(labels, "int32")
    # One column of padding, because a graph with unknown sizes fails for an empty sequence.
    labels = ops.pad(characters, [[0, 0], [0, 1]])
    inside = ops.logical_and(labels != separator, labels != 0)
    width = ops.shape(labels)[1]

    def step(carry, label):
        length, hashes = carry
        is_inside = label >= 0
        moduli, factors = np.array(MODULI, "int32"), np.array(FACTORS, "int32")
        following = (hashes * factors + label[:, None]) % moduli
        length = ops.where(is_inside, length + 1, 0)
        hashes = ops.where(is_inside[:, None], following, 0)
        return (length, hashes), (length, hashes)

    start = ops.zeros_like(labels[:, 0])
    start = (start, start[:, None] + ops.zeros((len(MODULI),), "int32"))
    # One tensor with -1 outside of words: with two tensors, Keras needs a known length.
    columns = ops.transpose(ops.where(inside, labels % min(MODULI), -1))
    lengths, hashes = ops.scan(step, start, columns)[1]  # (U, B), (U, B, 4)
    words = ops.concatenate([ops.transpose(lengths)[..., None], ops.transpose(hashes, (1, 0, 2))], axis=-1)
    ends = ops.logical_and(inside, ops.logical_not(ops.pad(inside[:, 1:], [[0, 0], [0, 1]])))
    position = ops.arange(width)[None, :]
    order = ops.argsort(ops.where(ends, position, position + width), axis=-1)
    words = ops.take_along_axis(ops.where(ends[..., None], words, 0), order[..., None], axis=1)
    return words[:, : ops.shape(characters)[1]]
