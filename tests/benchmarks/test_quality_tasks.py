"""The tasks of recall: what is asked is what stood there before, at any length."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality import listops, tasks
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


@given(random=RANDOM, length=st.integers(4, 200))
@draws(20, 200)
def test_induction_asks_what_followed_the_first_call(random, length):
    token_ids, targets = tasks.induction(random, 3, length)
    for ids, asked in zip(token_ids, targets, strict=True):
        first, last = np.flatnonzero(ids == tasks.CALL)
        assert last == length - 1 and first < length // 2
        assert np.flatnonzero(asked).tolist() == [last] and asked[last] == ids[first + 1]


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


@pytest.mark.parametrize(
    ("expression", "value"),
    [("[MAX 4 [SM 3 9 1 ] [MED 4 7 ] 0 ]", 5), ("[MIN 8 [MED 9 1 5 ] [MAX 2 6 ] ]", 5), ("[SM [MIN 7 9 ] 8 ]", 5)],
)
def test_an_expression_has_the_value_of_its_operators(expression, value):
    assert listops.value_of(expression.split()) == value


def test_drawn_expressions_have_their_lengths_depth_and_values():
    random = np.random.default_rng(0)
    steps = [[(x in listops.OPERATORS) - (x == "]") for x in listops.expression(random)] for _ in range(50)]
    deepest = max(max(itertools.accumulate(each)) for each in steps)
    assert deepest == listops.MAX_DEPTH - 1  # the digits are the tenth
    for row, value in zip(*listops.draw(random, 5), strict=True):
        symbols = [listops.SYMBOLS[number] for number in row if number]
        assert listops.MIN_LENGTH < len(symbols) < listops.MAX_LENGTH and listops.value_of(symbols) == value
        assert not row[len(symbols) :].any()
