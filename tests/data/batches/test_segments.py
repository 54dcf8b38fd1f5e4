"""Segments that continue in the next batch, in hand-worked cases and random stores."""

import numpy as np
import pytest

from tests.draws import first
from tf_sparse_attention.data import evaluation_segments, segment_batches
from tf_sparse_attention.data.batches import windows


def steps(batches, count, start=0):
    """Return inputs and targets of some steps, each key joined over them along the positions."""
    elements = [batches[start + step] for step in range(count)]
    inputs = {name: np.concatenate([element[0][name] for element in elements], axis=1) for name in elements[0][0]}
    return inputs, np.concatenate([element[1] for element in elements], axis=1)


def letters(ids):
    """Return byte ids as text: the end of a document as a full stop, the start as a space."""
    return "".join(" ."[int(i)] if i < 2 else chr(int(i) - 2) for i in ids)


def test_rows_are_parts_of_the_text_and_continue_in_the_next_batch(make_store, monkeypatch):
    monkeypatch.setattr(windows, "random_offset", lambda *_: 0)
    inputs, targets = steps(segment_batches(make_store([b"abcdefg", b"hijk"]), batch_size=2, sequence_length=3), 2)
    # abcdefg.hijk. has 13 tokens: rows of 6, each of two segments.
    assert [letters(row) for row in targets] == ["abcdef", "g.hijk"]
    assert [letters(row) for row in inputs["token_ids"]] == [" abcde", "fg hij"]
    assert inputs["segment_ids"].tolist() == [[1] * 6, [1] * 2 + [2] * 4]


@pytest.mark.parametrize(("batch_size", "length"), first([(3, 5), (1, 7), (4, 16)], 1))
def test_an_epoch_reads_every_row_from_start_to_end(random_store, batch_size, length):
    store = random_store()
    batches = segment_batches(store, batch_size, length, seed=3)
    for epoch in (0, 1):
        inputs, targets = steps(batches, batches.steps_per_epoch, epoch * batches.steps_per_epoch)
        stretch = store.num_tokens // batch_size
        stream = np.concatenate([store.tokens, store.tokens])
        for row in range(batch_size):
            start = windows.random_offset(store, 3, epoch) + row * stretch
            np.testing.assert_array_equal(targets[row], stream[start : start + targets.shape[1]])
        # What is read before a token is the token before it, or the start where a document begins.
        same = inputs["segment_ids"][:, 1:] == inputs["segment_ids"][:, :-1]
        np.testing.assert_array_equal(inputs["token_ids"][:, 1:], np.where(same, targets[:, :-1], 0))
        ends = targets[:, :-1] == store.end_id
        np.testing.assert_array_equal(same, ~ends)


@pytest.mark.parametrize(("batch_size", "length"), first([(3, 5), (1, 7), (4, 100)], 1))
def test_evaluation_scores_every_token_once_in_continued_rows(random_store, batch_size, length):
    store = random_store()
    batches = evaluation_segments(store, batch_size, length)
    elements = [batches[number] for number in range(batches.num_batches)]
    targets, weights = (np.concatenate([element[i] for element in elements], axis=1) for i in (1, 2))
    np.testing.assert_array_equal(targets[weights == 1], store.tokens)
    assert np.all(targets[weights == 0] == 0)
    ids = np.concatenate([element[0]["segment_ids"] for element in elements], axis=1)
    assert np.all((ids > 0) == (weights == 1))
    assert np.all(np.diff(ids, axis=1)[weights[:, 1:] == 1] >= 0)


def test_invalid_arguments_are_errors(make_store, subtests):
    store = make_store([b"abc"])
    for make in (segment_batches, evaluation_segments):
        for name, sizes in [("batch_size", (0, 3)), ("sequence_length", (2, 0))]:
            with subtests.test(name, make=make), pytest.raises(ValueError, match=f"`{name}`"):
                make(store, *sizes)
    with pytest.raises(ValueError, match="`store`"):
        segment_batches(store, 2, 3)
