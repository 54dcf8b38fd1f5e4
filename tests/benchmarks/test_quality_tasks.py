"""The tasks of recall: what is asked is what stood there before, at any length."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality import listops, recall, tasks
from tests.draws import draws

RANDOM = st.integers(0, 2**20).map(np.random.default_rng)


@given(random=RANDOM, count=st.integers(1, 3), length=st.sampled_from([16, 63, 64, 200]))
@draws(10, 100)
def test_associative_recall_asks_each_key_once_for_its_value(random, count, length):
    token_ids, targets = tasks.associative_recall(random, count, length)
    assert token_ids.shape == targets.shape == (count, length) and token_ids.min() > 0
    num_pairs = max(length // 16, 1)
    for ids, asked in zip(token_ids, targets, strict=True):
        pairs = dict(ids[: 2 * num_pairs].reshape(-1, 2).tolist())
        at = np.flatnonzero(asked)
        assert len(pairs) == len(at) == num_pairs and at.min() >= 2 * num_pairs
        assert {ids[index] for index in at} == set(pairs) and max(pairs) < tasks.NUM_KEYS <= min(pairs.values())
        assert [pairs[ids[index]] for index in at] == asked[at].tolist()


def test_most_keys_are_asked_soon_after_the_pairs():
    random, length = np.random.default_rng(0), 128
    _, targets = tasks.associative_recall(random, 200, length)
    # Of 8 keys one takes the first of 56 gaps nearly always, where all are as likely in 8 of 56.
    assert 0.8 < (targets[:, 2 * 8] > 0).mean() < 0.97


def test_test_sequences_differ_from_training_sequences():
    task = tasks.TASKS["induction"]
    learnt, tried = next(iter(tasks.training_batches(task, 0, 1))), []
    tasks.accuracy(lambda ids, at: tried.append(ids) or np.zeros((*at.shape, 1)), task, learnt.token_ids.shape[1])
    assert not {row.tobytes() for row in learnt.token_ids} & {row.tobytes() for row in np.concatenate(tried)}


@given(random=RANDOM, length=st.integers(4, 200))
@draws(20, 200)
def test_induction_asks_what_followed_the_first_call(random, length):
    token_ids, targets = tasks.induction(random, 3, length)
    for ids, asked in zip(token_ids, targets, strict=True):
        first, last = np.flatnonzero(ids == tasks.CALL)
        assert last == length - 1 and first < length // 2
        assert np.flatnonzero(asked).tolist() == [last] and asked[last] == ids[first + 1]


@given(random=RANDOM, length=st.integers(17, 200))
@draws(20, 200)
def test_selective_copying_asks_the_letters_in_their_order(random, length):
    token_ids, targets = tasks.selective_copying(random, 3, length)
    for ids, asked in zip(token_ids, targets, strict=True):
        before = ids[: length - tasks.NUM_COPIED]
        letters = before[before != tasks.NOISE]
        assert letters.max() <= tasks.NUM_LETTERS and len(letters) == tasks.NUM_COPIED
        assert asked[len(before) :].tolist() == letters.tolist() and not asked[: len(before)].any()
        assert ids[len(before) :].tolist() == [tasks.COPY, *letters[:-1]]


def draw_needles(monkeypatch, count, *depth):
    monkeypatch.setattr(tasks, "_haystack", lambda: np.full(5000, ord("x") + tasks.FIRST_BYTE, "int32"))
    return tasks.needle(np.random.default_rng(0), count, 200, *depth)


def test_a_needle_is_at_its_depth_or_anywhere_and_is_asked_for_at_the_end(monkeypatch):
    for depth in (0.0, 0.5, 1.0, None):
        for ids, asked in zip(*draw_needles(monkeypatch, 4, depth), strict=True):
            text = bytes((ids - tasks.FIRST_BYTE).tolist()).decode()
            digits = bytes((asked[-tasks.NUM_DIGITS :] - tasks.FIRST_BYTE).tolist()).decode()
            hay, question = text.rsplit("\n", 1)
            assert f"\n{question}{digits[-1]}\n" in hay + "\n" and len(text) == 200
            assert question.startswith("# ") and question.endswith(f" is {digits[:-1]}")
            before, after = hay.split(f"\n{question}{digits[-1]}\n") if depth != 1.0 else (hay.split("\n")[0], "")
            assert set(before + after) == {"x"}
            if depth is not None:
                assert len(before) == round(depth * len(before + after))
            assert not asked[: -tasks.NUM_DIGITS].any()
    begins = np.argmax(draw_needles(monkeypatch, 100)[0] == ord("#") + tasks.FIRST_BYTE, axis=1)
    assert begins.min() < 20 < 60 < np.median(begins) < 110 < 150 < begins.max()


class Knowing:
    """Logits of a model that answers what is asked in some of the rows."""

    def __init__(self, task, share):
        self.answers, self.share = {}, share
        for length in task.test_lengths:
            ids, targets = task.draw(np.random.default_rng([0, 1, length]), tasks.NUM_TESTED, length)
            self.answers |= {row.tobytes(): answer for row, answer in zip(ids, targets, strict=True)}

    def __call__(self, token_ids, at):
        known = np.stack([self.answers[row.tobytes()] for row in token_ids])
        known[: round(len(known) * (1 - self.share))] = 0
        return np.eye(tasks.CALL + 1)[np.take_along_axis(known, at, axis=1)]


def test_all_targets_are_asked_in_order(monkeypatch):
    monkeypatch.setattr(tasks, "_haystack", lambda: np.full(5000, ord("x") + tasks.FIRST_BYTE, "int32"))
    for task in tasks.TASKS.values():
        _, targets = task.draw(np.random.default_rng(0), 5, 128)
        at, answers = tasks.asked(targets)
        assert np.count_nonzero(targets) == at.size and answers.all() and (np.diff(at) > 0).all()
        again = np.zeros_like(targets)
        np.put_along_axis(again, at, answers, axis=1)
        assert (again == targets).all()


def test_accuracy_is_the_share_of_answered_questions():
    task = tasks.TASKS["induction"]._replace(test_lengths=(32,))
    for share in (0.0, 0.5, 1.0):
        assert tasks.accuracy(Knowing(task, share), task, 32) == share


def test_tables_show_the_results_of_the_runs():
    shown = recall.tables(recall.read())
    assert (
        "induction, learnt from 64 to 256" in shown and "| last_successors | 2 | 1.00 | 1.00 | 1.00 | 1.00 |" in shown
    )
    lengths = [str(length) for length in tasks.TASKS["needle"].test_lengths]
    found = {
        ("needle", "local", seed): {
            "accuracy": dict.fromkeys(lengths, 0.1 * seed), "by_depth": dict.fromkeys(lengths, (seed, 0, 0, 0, 1))
        }
        for seed in (0, 1)
    }  # fmt: skip
    lines = recall.tables(found).splitlines()
    assert "induction: not run" in lines and lines.count(f"| dense | 0 {'| - ' * 4}|") == 2
    assert f"| local | 2 {'| 0.00 to 0.10 ' * 4}|" in lines
    assert f"| local | 2 {'| 0.50, 0.00, 0.00, 0.00, 1.00 ' * 4}|" in lines


def test_logits_of_answers_are_those_of_the_model_after_training_too():
    model = recall.build(tasks.TASKS["selective_copying"]._replace(tie_embeddings=True), "last_successors")
    token_ids, at = np.arange(32, dtype="int32").reshape(2, 16) % tasks.COPY, np.array([[3, 15], [0, 7]], "int32")
    answers = recall.Answers(model)
    answers.compile("adam", loss=recall.models.language_model_loss(), run_eagerly=True)
    answers.train_on_batch([token_ids, at], np.array([[1, 2], [3, 4]]))
    logits = np.take_along_axis(np.asarray(model(token_ids)), at[..., None], axis=1)
    np.testing.assert_allclose(answers([token_ids, at]), logits, atol=1e-5)


@pytest.mark.full
def test_a_model_of_heads_with_successor_values_learns_induction():
    task = tasks.TASKS["induction"]._replace(train_lengths=(64,), test_lengths=(64, 128))
    assert min(recall.train(task, "last_successors", 0, steps=300)["accuracy"].values()) > 0.9


def depth_of(symbols):
    """Return how many operators of an expression are open at once."""
    steps = [(symbol in listops.OPERATORS) - (symbol == "]") for symbol in symbols]
    return max(itertools.accumulate(steps))


def test_expressions_have_the_value_that_their_definition_gives():
    def evaluate(symbols):  # by recursion, from the definition
        symbol = symbols.pop(0)
        if symbol not in listops.OPERATORS:
            return int(symbol)
        values = []
        while symbols[0] != "]":
            values.append(evaluate(symbols))
        symbols.pop(0)
        middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
        return {
            "[MIN": min(values),
            "[MAX": max(values),
            "[MED": sum(middle) // len(middle),
            "[SM": sum(values) % 10,
        }[symbol]

    assert listops.value_of(["[MAX", "4", "[SM", "3", "9", "1", "]", "[MED", "4", "7", "]", "0", "]"]) == 5
    random = np.random.default_rng(0)
    drawn = [listops.expression(random) for _ in range(50)]
    assert all(listops.value_of(symbols) == evaluate([*symbols]) for symbols in drawn)
    assert max(map(depth_of, drawn)) == listops.MAX_DEPTH - 1  # the digits are the tenth
    ids, values = listops.draw(random, 5)
    for row, value in zip(ids, values, strict=True):
        symbols = [listops.SYMBOLS[number] for number in row if number]
        assert listops.MIN_LENGTH < len(symbols) < listops.MAX_LENGTH and evaluate([*symbols]) == value
        assert not row[len(symbols) :].any()
    assert "| local | " in listops.table({}) and listops.table({("local", 0): {"accuracy": 0.5}}).count("0.500") == 1
