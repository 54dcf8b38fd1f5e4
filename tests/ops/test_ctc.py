"""The CTC loss equals a sum over all alignments, and its gradient equals finite differences."""

import itertools

import keras
import numpy as np
import pytest

from tests.contracts import assert_close, to_numpy
from tests.programs import differentiate
from tf_sparse_attention.ops.ctc import ctc_loss, force_blanks

V = 4
rng = np.random.default_rng(0)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def loss_of_all_paths(labels, log_probs):
    """-log p of the labels, every path of ids looked at."""
    wanted, total = [label for label in labels if label], 0
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        if [label for label, _ in itertools.groupby(path) if label] == wanted:
            total += np.exp(log_probs[np.arange(len(path)), path].sum())
    return -np.log(total)


LABELS = np.array([[1, 2, 3], [2, 2, 0], [0, 0, 0], [1, 1, 1], [3, 0, 0], [2, 3, 2]])
LOG_PROBS = log_softmax(rng.normal(size=(6, 5, V)) * 2).astype("float32")


def padded_loss(labels, log_probs, lengths):
    """Return the loss of rows with the given numbers of frames before the padding."""
    exists = np.arange(log_probs.shape[1]) < np.asarray(lengths)[:, None]
    return ctc_loss(labels, force_blanks(keras.ops.convert_to_tensor(log_probs), exists))


def test_the_loss_sums_over_all_alignments_within_the_length():
    for lengths in (np.full(6, 5), np.array([3, 4, 2, 5, 1, 3])):
        rows = zip(LABELS, LOG_PROBS, lengths, strict=True)
        expected = [loss_of_all_paths(labels, frames[:length]) for labels, frames, length in rows]
        assert_close(to_numpy(padded_loss(LABELS, LOG_PROBS, lengths)), expected, 1e-5)


def gradient_of(labels, log_probs, lengths=(5,)):
    def losses(inputs):
        return [padded_loss(labels, inputs["log_probs"], lengths)]

    _, gradients = differentiate(losses, {"log_probs": log_probs}, np.ones(len(labels), "float32"))
    return to_numpy(gradients["log_probs"])


def test_the_gradient_equals_finite_differences():
    found, step = gradient_of(LABELS, LOG_PROBS), 1e-5
    for row, frame, kind in [(0, 0, 1), (1, 2, 0), (1, 3, 2), (2, 1, 0), (3, 4, 1), (4, 2, 3), (5, 1, 2), (5, 0, 1)]:
        losses = []
        for sign in (1, -1):
            moved = LOG_PROBS[row].astype("float64")
            moved[frame, kind] += sign * step
            losses.append(loss_of_all_paths(LABELS[row], moved))
        assert abs((losses[0] - losses[1]) / (2 * step) - found[row, frame, kind]) < 1e-4


def test_padded_frames_hold_no_labels_and_do_not_change_other_rows():
    lengths = np.array([2, 2, 0, 4, 1, 2])  # of labels that need 3, 3, 0, 5, 1 and 3
    found = to_numpy(padded_loss(LABELS, LOG_PROBS, lengths))
    assert np.isinf(found).tolist() == [True, True, False, True, False, True]
    assert_close(found[[2, 4]], [0, loss_of_all_paths(LABELS[4], LOG_PROBS[4, :1])], 1e-5)
    gradient = gradient_of(LABELS, LOG_PROBS, lengths)
    assert not gradient[[0, 1, 2, 3, 5]].any() and not gradient[4, 1:].any()
    assert_close(gradient[4:5], gradient_of(LABELS[4:5], LOG_PROBS[4:5], lengths[4:5]), 1e-6)


def test_rows_without_labels_are_blanks():
    for width in (0, 1):
        found = to_numpy(ctc_loss(np.zeros((6, width), "int32"), LOG_PROBS))
        assert_close(found, -LOG_PROBS[..., 0].sum(axis=1), 1e-5)


@pytest.mark.full
def test_a_long_row_equals_keras():
    labels, lengths = rng.integers(1, 30, (2, 20)), np.array([70, 50], "int32")
    labels[1, 15:] = 0
    logits = rng.normal(size=(2, 70, 30)).astype("float32")
    expected = keras.ops.ctc_loss(labels, logits, np.array([20, 15], "int32"), lengths)
    found = padded_loss(labels, keras.ops.log_softmax(logits), lengths)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), rtol=1e-5)
