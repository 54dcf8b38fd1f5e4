"""Recall tasks: random sequences in which earlier tokens must be recalled.

Sequences can have any length, so models can be tested on longer sequences than in training. Target 0 is not scored. All
sequences of a length have equally many scored targets. Except for the haystack of "needle", this module needs only
NumPy, so models of other libraries can learn the same sequences.
"""

import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Examples(NamedTuple):
    """Tokens and targets, int32 (B, T) each: the token to predict after each token, 0 where nothing is scored."""

    token_ids: np.ndarray
    targets: np.ndarray


class Task(NamedTuple):
    """Recall task.

    Attributes:
        draw: function of a NumPy generator, the number of sequences and their length, which returns `Examples`.
        vocabulary_size: number of token ids, including 0.
        train_lengths: lengths of training batches, in rotation.
        test_lengths: lengths of test sequences.
        depths: tested values of the argument `depth` of `draw`, if it has this argument.
        tie_embeddings: whether output weights are the embedding, as in the publication of the task.
    """

    draw: Callable[[np.random.Generator, int, int], Examples]
    vocabulary_size: int
    train_lengths: tuple[int, ...]
    test_lengths: tuple[int, ...]
    depths: tuple[float, ...] = ()
    tie_embeddings: bool = False


RESULTS = pathlib.Path(__file__).with_name("recall.jsonl")
# Settings shared by the models of all libraries.
WINDOW, HIDDEN_DIM, NUM_LAYERS = 8, 64, 2
STEPS, WARMUP_STEPS, LEARNING_RATE = 1500, 50, 3e-3
TOKENS_IN_A_STEP = 4096
NUM_TESTED, TESTED_AT_ONCE = 64, 8  # sequences of each length


def asked(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of scored targets, int32 (B, A), in order, and these targets, int32 (B, A)."""
    at = np.nonzero(targets)[1].reshape(len(targets), -1).astype("int32")
    return at, np.take_along_axis(targets, at, axis=1)


def scores(
    logits_of: Callable[[np.ndarray, np.ndarray], np.ndarray], task: Task, seed: int
) -> dict[str, dict[int, Any]]:
    """Return the accuracy of a model by length.

    "accuracy" has {length: accuracy}. For a task with depths, "by_depth" has {length: accuracies by depth}.
    """

    def share(length, **settings):
        return accuracy(logits_of, task, length, seed, **settings)

    found: dict[str, Any] = {"accuracy": {length: share(length) for length in task.test_lengths}}
    if task.depths:
        found["by_depth"] = {
            length: [share(length, depth=depth) for depth in task.depths] for length in task.test_lengths
        }
    return found


def training_batches(task: Task, seed: int, steps: int) -> Iterator[Examples]:
    """Yield the training batches of a seed."""
    random = np.random.default_rng([seed, 0])
    for length in itertools.islice(itertools.cycle(task.train_lengths), steps):
        yield task.draw(random, TOKENS_IN_A_STEP // length, length)


def accuracy(
    logits_of: Callable[[np.ndarray, np.ndarray], np.ndarray], task: Task, length: int, seed: int = 0, **settings: Any
) -> float:
    """Return the accuracy of a model on random sequences of a length.

    Args:
        logits_of: function of token ids (B, T) and positions (B, A) that returns logits at these positions, (B, A, V).
        task: a `Task`.
        length: T, length of the sequences.
        seed: seed of the sequences.
        **settings: further arguments of `task.draw`.
    """
    drawn = task.draw(np.random.default_rng([seed, 1, length]), NUM_TESTED, length, **settings)
    right = []
    for first in range(0, NUM_TESTED, TESTED_AT_ONCE):
        token_ids, targets = (x[first : first + TESTED_AT_ONCE] for x in drawn)
        at, answers = asked(targets)
        right.append(logits_of(token_ids, at).argmax(-1) == answers)
    return float(np.concatenate(right).mean())


NUM_KEYS = 4096  # of associative recall: keys 1 .. 4095, values 4096 .. 8191
GAP_POWER = 0.01


def associative_recall(random: np.random.Generator, count: int, length: int) -> Examples:
    """Return sequences of `length` / 16 pairs (key, value), followed by each key again with its value as the target.

    The keys of a sequence differ. The gap before the second occurrence of a key follows the power law a x^(a - 1) with
    a = 0.01, so most gaps are short. Remaining positions have random tokens. This is "MQAR" of Arora et al. 2023,
    "Zoology: Measuring and improving recall in efficient language models", section 3 and appendix.
    """
    num_pairs = max(length // 16, 1)
    keys = np.stack([1 + random.choice(NUM_KEYS - 1, num_pairs, replace=False) for _ in range(count)])
    values = random.integers(NUM_KEYS, 2 * NUM_KEYS, (count, num_pairs))
    ids = random.integers(1, 2 * NUM_KEYS, (count, length))
    ids[:, : 2 * num_pairs] = np.stack([keys, values], axis=-1).reshape(count, -1)
    gaps = np.arange((length - 2 * num_pairs) // 2)
    likely = GAP_POWER * (gaps + 1) ** (GAP_POWER - 1)
    targets = np.zeros((count, length))
    for row in range(count):
        at = 2 * num_pairs + 2 * random.choice(gaps, num_pairs, replace=False, p=likely / likely.sum())
        ids[row, at], targets[row, at] = keys[row], values[row]
    return Examples(ids.astype("int32"), targets.astype("int32"))


NUM_LETTERS = 16  # 1 .. 16
CALL = NUM_LETTERS + 1  # precedes the token to recall; its second occurrence asks for this token


def induction(random: np.random.Generator, count: int, length: int) -> Examples:
    """Return random letters with `CALL` in the first half and at the end; the target is the token after the first.

    This is "induction heads" of Gu and Dao 2023, "Mamba", section 4.1.2.
    """
    ids = random.integers(1, CALL, (count, length))
    rows, at = np.arange(count), random.integers(0, max(length // 2 - 1, 1), count)
    ids[rows, at], ids[:, -1] = CALL, CALL
    targets = np.zeros((count, length))
    targets[:, -1] = ids[rows, at + 1]
    return Examples(ids.astype("int32"), targets.astype("int32"))


NUM_COPIED = 8
NOISE, COPY = NUM_LETTERS + 1, NUM_LETTERS + 2


def selective_copying(random: np.random.Generator, count: int, length: int) -> Examples:
    """Return 8 letters at random positions among noise, then `COPY` and 8 targets: the letters in order.

    This is "selective copying" of Gu and Dao 2023, section 4.1.1, as language modeling: the input after `COPY` is the
    previous letter.
    """
    noisy = length - NUM_COPIED
    ids = np.full((count, length), NOISE)
    at = np.sort(np.stack([random.choice(noisy, NUM_COPIED, replace=False) for _ in range(count)]), axis=1)
    letters = random.integers(1, NUM_LETTERS + 1, (count, NUM_COPIED))
    np.put_along_axis(ids, at, letters, axis=1)
    ids[:, noisy], ids[:, noisy + 1 :] = COPY, letters[:, :-1]
    targets = np.zeros((count, length))
    targets[:, noisy:] = letters
    return Examples(ids.astype("int32"), targets.astype("int32"))


DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
NEEDLE, QUESTION = "\n# {name} is {number}\n", "\n# {name} is "
NUM_DIGITS, NAME_LENGTH = 5, 4
FIRST_BYTE = 2  # ids of `tsa.data.ByteTokenizer`: 0 is padding, 1 the end, byte b is b + 2
NUM_BYTES = 256 + FIRST_BYTE


@functools.cache
def _haystack() -> np.ndarray:
    """Return the training split of the Python library as byte ids."""
    import tf_sparse_attention as tsa  # imports TensorFlow

    tokens = np.asarray(tsa.data.open_token_store(tsa.data.open_source(), tsa.data.ByteTokenizer(), "train").tokens)
    return tokens[tokens >= FIRST_BYTE].astype("int32")


def needle(random: np.random.Generator, count: int, length: int, depth: float | None = None) -> Examples:
    """Return pieces of source code with "# name is 12345" at some depth and again at the end.

    The targets are the digits of the second occurrence. Each sequence has a random name of four letters and random
    digits.

    Args:
        random: NumPy generator.
        count: B, number of sequences.
        length: T, at least 64.
        depth: depth of the needle, from 0 (beginning) to 1 (right before the question). None: random per sequence.
    """
    tokens = _haystack()
    ids, targets = np.zeros((count, length), "int32"), np.zeros((count, length), "int32")
    for row in range(count):
        name = "".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), NAME_LENGTH))
        number = "".join(random.choice(list("0123456789"), NUM_DIGITS))
        line, question = (_ids(text.format(name=name, number=number)) for text in (NEEDLE, QUESTION))
        digits = _ids(number)
        room = length - len(line) - len(question) - NUM_DIGITS + 1  # the last digit is only a target
        start = random.integers(len(tokens) - room)
        at = round(room * (random.random() if depth is None else depth))
        text = tokens[start : start + room]
        ids[row] = np.concatenate([text[:at], line, text[at:], question, digits[:-1]])
        targets[row, -NUM_DIGITS:] = digits
    return Examples(ids, targets)


def _ids(text):
    return np.frombuffer(text.encode(), "uint8").astype("int32") + FIRST_BYTE


TASKS = {
    "associative_recall": Task(
        associative_recall, 2 * NUM_KEYS, (64, 128, 256), (256, 512, 1024, 2048), tie_embeddings=True
    ),
    "induction": Task(induction, CALL + 1, (64, 128, 256), (256, 512, 1024, 2048)),
    "selective_copying": Task(selective_copying, COPY + 1, (64, 128, 256), (256, 512, 1024, 2048)),
    "needle": Task(needle, NUM_BYTES, (128, 256), (256, 512, 1024, 2048), DEPTHS),
}
