"""A needle in a haystack: one line somewhere in Python source, as bytes, that is asked for at the end."""

import functools

import numpy as np

from benchmarks.quality.tasks import Examples

NEEDLE, QUESTION = "\n# {name} is {number}\n", "\n# {name} is "
NUM_DIGITS, NAME_LENGTH = 5, 4
FIRST_BYTE = 2  # ids of `tsa.data.ByteTokenizer`: 0 is padding, 1 the end, byte b is b + 2
VOCABULARY_SIZE = 256 + FIRST_BYTE


@functools.cache
def _haystack() -> np.ndarray:
    """Returns the training split of the interpreter's own library as ids of bytes."""
    import tf_sparse_attention as tsa  # imports TensorFlow

    tokens = np.asarray(tsa.data.open_token_store(tsa.data.open_source(), tsa.data.ByteTokenizer(), "train").tokens)
    return tokens[tokens >= FIRST_BYTE].astype("int32")


def needle(random: np.random.Generator, count: int, length: int, depth: float | None = None) -> Examples:
    """Returns pieces of source with "# name is 12345" at some depth and "# name is 12345" again at the end.

    The digits of the second are asked. Names are four letters, drawn for each sequence as the digits are.

    Args:
        random: of NumPy.
        count: sequences, B.
        length: T, at least 64.
        depth: of the needle, 0 the beginning and 1 right before the question. None: drawn for each.
    """
    tokens = _haystack()
    ids, targets = np.zeros((count, length), "int32"), np.zeros((count, length), "int32")
    for row in range(count):
        name = "".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), NAME_LENGTH))
        number = "".join(random.choice(list("0123456789"), NUM_DIGITS))
        line, question = (_ids(text.format(name=name, number=number)) for text in (NEEDLE, QUESTION))
        digits = _ids(number)
        room = length - len(line) - len(question) - NUM_DIGITS + 1  # the last digit is a target alone
        start = random.integers(len(tokens) - room)
        at = round(room * (random.random() if depth is None else depth))
        text = tokens[start : start + room]
        ids[row] = np.concatenate([text[:at], line, text[at:], question, digits[:-1]])
        targets[row, -NUM_DIGITS:] = digits
    return Examples(ids, targets)


def _ids(text):
    return np.frombuffer(text.encode(), "uint8").astype("int32") + FIRST_BYTE
