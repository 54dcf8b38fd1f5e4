"""Beam search against a slow search in Python, and against the greedy loop."""

import itertools

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tf_sparse_attention.generation import beam_search
from tf_sparse_attention.generation.beam_search import UNLIKELY

SIZE = 4


def table(seed):
    return np.random.default_rng(seed).normal(size=(SIZE, SIZE)).astype("float32") * 2


def bigram(logits):
    def step(inputs, index, state):
        last = ops.take_along_axis(inputs, index[:, None], axis=1)[:, 0]
        return ops.take(ops.convert_to_tensor(logits), last, axis=0), state

    return step


def log_probs_of(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def run(step, prompts, max_length, num_beams, **settings):
    """Return for each row its beams as pairs of tokens and score, without those that hold nothing."""
    buffer = np.zeros((len(prompts), max_length), "int32")
    for row, prompt in zip(buffer, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = [len(prompt) for prompt in prompts]
    found = beam_search(step, buffer, lengths, max_length, num_beams, **settings)
    inputs, _, scores, lengths = (ops.convert_to_numpy(x) for x in found)
    assert (np.diff(scores, axis=1) <= 0).all()
    return [
        [(tuple(ids[1 : 1 + n]), score) for ids, score, n in zip(*row, strict=True) if score > UNLIKELY / 2]
        for row in zip(inputs, scores, lengths, strict=True)
    ]


def slow_search(logits, prompt, max_length, num_beams, stop_id, length_penalty):
    """The search itself, for one row, with lists."""
    steps, live, ended = log_probs_of(logits.astype("float64")), [((0, *prompt), 0.0)], []
    longest = max_length - len(prompt)
    for count in range(1, longest + 1):
        grown = [((*text, token), score + steps[text[-1], token]) for text, score in live for token in range(SIZE)]
        ended += [(text[1:], score / count**length_penalty) for text, score in grown if text[-1] == stop_id]
        live = sorted((entry for entry in grown if entry[0][-1] != stop_id), key=lambda entry: -entry[1])[:num_beams]
        if count == longest:
            ended += [(text[1:], score / count**length_penalty) for text, score in live]
        ended = sorted(ended, key=lambda entry: -entry[1])[:num_beams]
        if len(ended) == num_beams and ended[-1][1] >= live[0][1] / longest**length_penalty:
            break
    return ended


@pytest.mark.parametrize("seed", first(range(4), 1))
@pytest.mark.parametrize(("num_beams", "length_penalty"), [(1, 1.0), (3, 1.0), (3, 0.7)])
def test_beams_find_what_a_slow_search_finds(seed, num_beams, length_penalty):
    prompts = [[2], [], [1, 3, 0]]
    settings = {"length_penalty": length_penalty, "stop_token_ids": [3, -1]}
    rows = run(bigram(table(seed)), prompts, 7, num_beams, **settings)
    for row, prompt in zip(rows, prompts, strict=True):
        wanted = slow_search(table(seed), prompt, 7, num_beams, 3, length_penalty)
        assert [text for text, _ in row] == [text for text, _ in wanted]
        np.testing.assert_allclose([score for _, score in row], [score for _, score in wanted], atol=1e-5)


def test_the_state_of_a_step_follows_its_beam():
    logits = table(5)

    def remembering(inputs, index, state):
        # The last token as the state knows it, not the inputs: wrong as soon as states are mixed up.
        last = ops.take_along_axis(inputs, index[:, None], axis=1)[:, 0]
        before = ops.where(index == 0, 0, state["last"])
        return ops.take(ops.convert_to_tensor(logits), last, axis=0) + ops.one_hot(before, SIZE), {"last": last}

    def reading(inputs, index, state):
        last, before = (
            ops.take_along_axis(inputs, ops.maximum(index - back, 0)[:, None], axis=1)[:, 0] for back in (0, 1)
        )
        return ops.take(ops.convert_to_tensor(logits), last, axis=0) + ops.one_hot(before, SIZE), state

    state = {"last": np.zeros(2, "int32")}
    assert run(remembering, [[], []], 4, 3, state=state)[0] == run(reading, [[], []], 4, 3)[0]


def test_a_prompt_as_long_as_allowed_is_its_own_result():
    rows = run(bigram(table(0)), [[1, 2, 1], [2]], 3, 2, stop_token_ids=[3])
    assert rows[0] == [((1, 2, 1), 0.0)]
    assert len(rows[1][0][0]) > 1


def test_log_probabilities_are_the_steps_own_where_scores_are_adjusted():
    logits = table(2)

    def flatter(logits, inputs, index):
        return 0.5 * logits

    settings = {"length_penalty": 0.0, "stop_token_ids": [3], "adjust": flatter}
    found = beam_search(bigram(logits), np.zeros((1, 6), "int32"), [0], 6, 3, **settings)
    inputs, own, scores, lengths = (ops.convert_to_numpy(x)[0] for x in found)
    assert (lengths < 6).any()
    for text, one, score, length in zip(inputs, own, scores, lengths, strict=True):
        pairs = list(itertools.pairwise(text[: length + 1]))
        np.testing.assert_allclose(one[:length], [log_probs_of(logits)[pair] for pair in pairs], atol=1e-5)
        np.testing.assert_allclose(score, sum(log_probs_of(0.5 * logits)[pair] for pair in pairs), atol=1e-5)


def test_stop_ids_count_once_and_if_they_are_ids():
    step = bigram(table(1))
    for stop_token_ids, same_as in (([9], []), ([-1, 1, 7, 1], [1])):
        found, expected = (run(step, [[2]], 4, 3, stop_token_ids=given) for given in (stop_token_ids, same_as))
        assert found == expected
