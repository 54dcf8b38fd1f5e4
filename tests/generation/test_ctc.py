"""Decoding of CTC: greedy as by hand, beams as all transcripts one by one."""

import itertools

import numpy as np
import pytest

from tf_sparse_attention.generation import ctc_beam_search, ctc_greedy


def one_hot(ids, num_kinds=5):
    return np.log(np.eye(num_kinds)[ids] * 0.9 + 0.02)


def test_greedy_collapses_repeats_and_drops_blanks():
    frames = np.stack([one_hot([1, 1, 0, 1, 2, 2, 0, 0]), one_hot([0, 0, 0, 0, 0, 0, 0, 0])])
    assert np.asarray(ctc_greedy(frames)).tolist() == [[1, 1, 2, 0, 0, 0, 0, 0], [0] * 8]


def all_transcripts(log_probs):
    """log p of every transcript, of every path of ids."""
    found = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        labels = tuple(label for label, _ in itertools.groupby(path) if label)
        score = log_probs[np.arange(len(path)), path].sum()
        found[labels] = np.logaddexp(found.get(labels, -np.inf), score)
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("seed", range(2))
def test_beams_are_the_likeliest_of_all_transcripts(seed):
    logits = np.random.default_rng(seed).normal(size=(6, 4)) * 1.5
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    best = all_transcripts(log_probs)[:5]
    found = ctc_beam_search(log_probs, num_beams=2000, num_results=5)
    assert [tuple(each.ids.tolist()) for each in found] == [labels for labels, _ in best]
    np.testing.assert_allclose([each.log_prob for each in found], [score for _, score in best], atol=1e-9)


def test_beams_see_that_alignments_of_one_transcript_add_up():
    # The likeliest path is blank and blank, 0.36; transcript 1 has 0.64 in three paths.
    (found,) = ctc_beam_search(np.log([[0.6, 0.4], [0.6, 0.4]]), num_beams=2)
    assert found.ids.tolist() == [1] and abs(np.exp(found.log_prob) - 0.64) < 1e-9


def test_a_beginning_that_fell_off_and_came_back_is_the_same_one():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(40, 6)) * 2
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    few = ctc_beam_search(log_probs, num_beams=8, num_results=8)
    assert len({tuple(each.ids.tolist()) for each in few}) == len(few) == 8
    many = ctc_beam_search(log_probs, num_beams=200)
    assert few[0].log_prob <= many[0].log_prob + 1e-9


def test_what_is_no_matrix_of_frames_is_refused():
    with pytest.raises(ValueError, match="`log_probs`"):
        ctc_beam_search(np.zeros(2))
    with pytest.raises(ValueError, match="`num_beams`"):
        ctc_beam_search(np.zeros((2, 3)), num_beams=0)
