"""Decoding of connectionist temporal classification: from log-probabilities of each frame to labels."""

from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.types import Tensor

BLANK = 0


class Transcript(NamedTuple):
    """Labels that a search found.

    Attributes:
        ids: int32 (U,).
        log_prob: of the labels, summed over the alignments that the search kept, in nats.
    """

    ids: np.ndarray
    log_prob: float


def ctc_greedy(log_probs: Tensor) -> Tensor:
    """Returns the labels of the likeliest id of each frame: repeats are collapsed and blanks, id 0, dropped.

    Padded frames must be certainly blank, as those of a `SpeechRecognizer` are.

    Note: `keras.ops.ctc_decode` does the same, but on TensorFlow XLA compiles no program with it.

    Args:
        log_probs: float (B, T, V), of the blank and the labels 1 to V - 1.

    Returns:
        int32 (B, T), 0 for padding on the right.
    """
    return collapse(ops.cast(ops.argmax(log_probs, axis=-1), "int32"))


def collapse(ids: Tensor) -> Tensor:
    """Returns the labels of an alignment, int32 (B, T): repeats as one and no blanks, 0 for padding on the right."""
    before = ops.pad(ids[:, :-1], [[0, 0], [1, 0]])
    kept = ops.logical_and(ids != BLANK, ids != before)
    position = ops.arange(ops.shape(ids)[1])[None, :]
    order = ops.argsort(ops.where(kept, position, position + ops.shape(ids)[1]), axis=-1)
    return ops.take_along_axis(ops.where(kept, ids, BLANK), order, axis=1)


def ctc_beam_search(log_probs: np.ndarray, num_beams: int = 16, num_results: int = 1) -> list[Transcript]:
    """Finds the likeliest labels of a recording, summed over their alignments (Graves and Jaitly 2014).

    Frame by frame the `num_beams` likeliest beginnings are kept, each with the probability that it ends in a blank and
    that it does not, O(T num_beams V). It is exact where no beginning falls off.

    Note: in NumPy, the same on all backends. `keras.ops.ctc_decode(strategy="beam_search")` finds the same labels; but
    on JAX it sorts all beginnings, of T ids each, in every frame: 9 s for 128 frames of 60 ids and 16 beams, where
    TensorFlow takes 0.1 s, and XLA compiles no program with TensorFlow's.

    Args:
        log_probs: float (T, V), of the blank, id 0, and the labels 1 to V - 1.
        num_beams: beginnings that are kept. Default 16.
        num_results: transcripts that are returned, at most `num_beams`. Default 1.

    Returns:
        List of `Transcript`, the likeliest first; fewer than `num_results` where no others were found.

    Raises:
        ValueError: for another shape, and for numbers that are not positive.

    Example:
        >>> frames = np.log([[0.1, 0.8, 0.1], [0.6, 0.2, 0.2], [0.2, 0.1, 0.7]])
        >>> ctc_beam_search(frames, num_beams=4)[0].ids.tolist()
        [1, 2]
    """
    checks.check_count("num_beams", num_beams)
    checks.check_count("num_results", num_results)
    log_probs = np.asarray(log_probs, "float64")
    if log_probs.ndim != 2 or log_probs.shape[1] < 2:
        raise ValueError(f"`log_probs` must have the shape (frames, labels + 1). Received: shape {log_probs.shape}.")
    beams = _Beams()
    for frame in log_probs:
        beams.read(frame, num_beams)
    order = np.argsort(-beams.totals, kind="stable")[:num_results]
    return [Transcript(beams.labels_of(beams.nodes[i]), float(beams.totals[i])) for i in order]


class _Beams:
    """Beginnings of transcripts, the nodes of a tree, each with log p of ending in a blank and in its last label."""

    def __init__(self):
        self._numbers = {}  # of the child of a node with a label
        self._parents, self._labels = [-1], [BLANK]
        self.nodes = [0]
        self._in_blank, self._in_label = np.zeros(1), np.full(1, -np.inf)

    @property
    def totals(self):
        """log p of each beginning."""
        return np.logaddexp(self._in_blank, self._in_label)

    def read(self, frame, num_beams):
        """Extends the beginnings by a frame, log-probabilities (V,), and keeps the likeliest."""
        totals, labels = self.totals, np.array([self._labels[node] for node in self.nodes])
        in_blank, in_label = totals + frame[BLANK], self._in_label + frame[labels]
        longer = totals[:, None] + frame  # (beams, V), a label more
        rows = np.arange(len(self.nodes))
        longer[rows, labels] = self._in_blank + frame[labels]  # equal labels need a blank between
        longer[:, BLANK] = -np.inf
        places = {node: place for place, node in enumerate(self.nodes)}
        for place, node in enumerate(self.nodes):  # a beginning that is also another one and a label
            parent = places.get(self._parents[node])
            if parent is not None:
                in_label[place] = np.logaddexp(in_label[place], longer[parent, labels[place]])
                longer[parent, labels[place]] = -np.inf
        candidates = np.concatenate([np.logaddexp(in_blank, in_label), longer.reshape(-1)])
        best = np.argsort(-candidates, kind="stable")[:num_beams]
        best = best[candidates[best] > -np.inf]
        old, new = best[best < len(rows)], best[best >= len(rows)] - len(rows)
        parents, added = np.divmod(new, len(frame))
        children = [self._child(self.nodes[parent], int(label)) for parent, label in zip(parents, added, strict=True)]
        self.nodes = [self.nodes[place] for place in old] + children
        self._in_blank = np.concatenate([in_blank[old], np.full(len(new), -np.inf)])
        self._in_label = np.concatenate([in_label[old], longer[parents, added]])

    def _child(self, node, label):
        number = self._numbers.setdefault((node, label), len(self._parents))
        if number == len(self._parents):
            self._parents.append(node)
            self._labels.append(label)
        return number

    def labels_of(self, node):
        """Returns the labels from the beginning to a node."""
        found = []
        while node:
            found.append(self._labels[node])
            node = self._parents[node]
        return np.array(found[::-1], "int32")
