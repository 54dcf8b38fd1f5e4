"""Decoding of connectionist temporal classification (CTC): from log-probabilities of frames to labels."""

from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.types import Tensor

BLANK = 0


class Transcript(NamedTuple):
    """Result of a beam search.

    Attributes:
        ids: int32 (U,), label ids.
        log_prob: log-probability of the labels in nats, summed over the alignments that the search kept.
    """

    ids: np.ndarray
    log_prob: float


def ctc_greedy(log_probs: Tensor) -> Tensor:
    """Decode the most likely id of each frame: collapse repeats and remove blanks, id 0.

    Padded frames must have blank probability 1, as in the output of a `SpeechRecognizer`.

    Note: equals `keras.ops.ctc_decode`, which XLA cannot compile on TensorFlow.

    Args:
        log_probs: float (B, T, V), log-probabilities of the blank and the labels 1 to V - 1.

    Returns:
        int32 (B, T), 0 for padding on the right.
    """
    return collapse(ops.cast(ops.argmax(log_probs, axis=-1), "int32"))


def collapse(ids: Tensor) -> Tensor:
    """Collapse repeats and remove blanks of alignments, int32 (B, T), with 0 for padding on the right."""
    before = ops.pad(ids[:, :-1], [[0, 0], [1, 0]])
    kept = ops.logical_and(ids != BLANK, ids != before)
    position = ops.arange(ops.shape(ids)[1])[None, :]
    order = ops.argsort(ops.where(kept, position, position + ops.shape(ids)[1]), axis=-1)
    return ops.take_along_axis(ops.where(kept, ids, BLANK), order, axis=1)


def ctc_beam_search(log_probs: np.ndarray, num_beams: int = 16, num_results: int = 1) -> list[Transcript]:
    """Find the most likely labels of a recording by prefix beam search (Graves and Jaitly 2014).

    For each frame, the search keeps the `num_beams` most likely prefixes, with the probabilities that they end in a
    blank and in a label. The probability of a prefix is summed over its alignments. Cost: O(T num_beams V). The result
    is exact if no prefix is dropped.

    Note: computed in NumPy on all backends. `keras.ops.ctc_decode(strategy="beam_search")` finds the same labels. On
    JAX it sorts all prefixes, of T ids each, in every frame: 9 s for 128 frames of 60 ids and 16 beams. On TensorFlow
    it takes 0.1 s, but XLA cannot compile it.

    Args:
        log_probs: float (T, V), log-probabilities of the blank, id 0, and the labels 1 to V - 1.
        num_beams: beam width. Default 16.
        num_results: maximum number of results, at most `num_beams`. Default 1.

    Returns:
        List of `Transcript`, most likely first; fewer than `num_results` if the search finds fewer.

    Raises:
        ValueError: If `log_probs` has another shape, or a number is not positive.

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
    return [Transcript(beams.backtrace(beams.nodes[i]), float(beams.totals[i])) for i in order]


class _Beams:
    """Prefixes of transcripts as nodes of a tree, with log p of ending in a blank and in the last label."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}  # child node of each (node, label)
        self._parents, self._labels = [-1], [BLANK]
        self.nodes = [0]
        self._in_blank, self._in_label = np.zeros(1), np.full(1, -np.inf)

    @property
    def totals(self):
        """Log-probability of each prefix."""
        return np.logaddexp(self._in_blank, self._in_label)

    def read(self, frame, num_beams):
        """Extend the prefixes by a frame, log-probabilities (V,), and keep the most likely."""
        totals, labels = self.totals, np.array([self._labels[node] for node in self.nodes])
        in_blank, in_label = totals + frame[BLANK], self._in_label + frame[labels]
        longer = totals[:, None] + frame  # (beams, V), one more label
        rows = np.arange(len(self.nodes))
        longer[rows, labels] = self._in_blank + frame[labels]  # equal labels need a blank between
        longer[:, BLANK] = -np.inf
        beams = {node: beam for beam, node in enumerate(self.nodes)}
        for beam, node in enumerate(self.nodes):  # merge a prefix with its extended parent, which is the same prefix
            parent = beams.get(self._parents[node])
            if parent is not None:
                in_label[beam] = np.logaddexp(in_label[beam], longer[parent, labels[beam]])
                longer[parent, labels[beam]] = -np.inf
        candidates = np.concatenate([np.logaddexp(in_blank, in_label), longer.reshape(-1)])
        best = np.argsort(-candidates, kind="stable")[:num_beams]
        best = best[candidates[best] > -np.inf]
        old, new = best[best < len(rows)], best[best >= len(rows)] - len(rows)
        parents, added = np.divmod(new, len(frame))
        children = [self._child(self.nodes[parent], int(label)) for parent, label in zip(parents, added, strict=True)]
        self.nodes = [self.nodes[beam] for beam in old] + children
        self._in_blank = np.concatenate([in_blank[old], np.full(len(new), -np.inf)])
        self._in_label = np.concatenate([in_label[old], longer[parents, added]])

    def _child(self, node, label):
        number = self._numbers.setdefault((node, label), len(self._parents))
        if number == len(self._parents):
            self._parents.append(node)
            self._labels.append(label)
        return number

    def backtrace(self, node):
        """Return the labels on the path from the root to a node."""
        labels = []
        while node:
            labels.append(self._labels[node])
            node = self._parents[node]
        return np.array(labels[::-1], "int32")
