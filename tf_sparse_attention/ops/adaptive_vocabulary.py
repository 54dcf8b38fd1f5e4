"""Adaptive input and adaptive softmax: vocabularies in clusters by frequency, with smaller vectors for rare words."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.shapes import in_range, max_over, shape
from tf_sparse_attention.types import Tensor


class Cluster(NamedTuple):
    """Weights of the words in a cluster.

    Attributes:
        table: word vectors (V_i, H_i).
        projection: (H_i, D), from word vectors to hidden vectors; its transpose is used for logits.
        bias: (V_i,), bias of the logits; None for an embedding.
    """

    table: Tensor
    projection: Tensor
    bias: Tensor | None = None


class Gate(NamedTuple):
    """Weights of the logits of C rare clusters in the head softmax: kernel (H_0, C) and bias (C,)."""

    kernel: Tensor
    bias: Tensor


def cluster_starts(clusters: Sequence[Cluster]) -> list[int]:
    """Return the first id of each cluster, followed by the number of words."""
    return [0, *itertools.accumulate(cluster.table.shape[0] for cluster in clusters)]


def embed_words(ids: Tensor, clusters: Sequence[Cluster]) -> Tensor:
    """Embed each word w of cluster i as sqrt(D) P_i^T e_w: int (...) to (..., D). Cost O(T D sum of H_i).

    An invalid id gives NaN: a compiled program cannot raise, and zeros would look like a valid embedding.
    """
    starts = cluster_starts(clusters)
    scale = clusters[0].projection.shape[-1] ** 0.5
    total = 0
    for cluster, start, stop in zip(clusters, starts[:-1], starts[1:], strict=True):
        rows = ops.take(cluster.table, in_range(ids - start, stop - start), axis=0)
        here = ops.logical_and(ids >= start, ids < stop)[..., None]
        total = total + ops.matmul(ops.where(here, rows, 0), cluster.projection)
    return ops.where(_is_word(ids, starts)[..., None], total * scale, np.nan)


def _is_word(ids, starts):
    return ops.logical_and(ids >= 0, ids < starts[-1])


def word_logits(x: Tensor, cluster: Cluster) -> tuple[Tensor, Tensor]:
    """Return logits (..., V_i) of the words in a cluster, and projected inputs (..., H_i), for inputs (..., D)."""
    vectors = ops.matmul(x, ops.transpose(cluster.projection))
    logits = ops.matmul(vectors, ops.transpose(cluster.table))
    return _precise(logits) + _precise(cluster.bias), vectors


def head_logits(x: Tensor, cluster: Cluster, gate: Gate | None) -> Tensor:
    """Return the logits of the head, frequent words and then rare clusters: (..., D) to (..., V_0 + C)."""
    logits, vectors = word_logits(x, cluster)
    if gate is None:
        return logits
    return ops.concatenate([logits, _precise(ops.matmul(vectors, gate.kernel)) + _precise(gate.bias)], axis=-1)


def _precise(x):
    # A softmax over a large vocabulary needs more than half precision.
    return ops.cast(x, score_dtype(ops.dtype(x)))


def log_softmax(logits: Tensor) -> Tensor:
    """Return logits minus their log-sum-exp."""
    return logits - ops.logsumexp(logits, axis=-1, keepdims=True)


def word_log_probabilities(x: Tensor, clusters: Sequence[Cluster], gate: Gate | None) -> Tensor:
    """Return the log-probabilities of all words, (..., D) to (..., V), in O(T V).

    log p(w) = log p_head(w) for frequent words, log p_head(cluster) + log p_cluster(w) for rare words.
    """
    frequent = clusters[0].table.shape[0]
    head = log_softmax(head_logits(x, clusters[0], gate))
    parts = [head[..., :frequent]]
    for index, cluster in enumerate(clusters[1:]):
        column = frequent + index
        parts.append(head[..., column : column + 1] + log_softmax(word_logits(x, cluster)[0]))
    return ops.concatenate(parts, axis=-1)


def word_loss(x: Tensor, ids: Tensor, clusters: Sequence[Cluster], gate: Gate | None) -> Tensor:
    """Return -log p of words. Rare clusters are computed only for the rows that need them.

    Args:
        x: float (R, D).
        ids: int (R,), ids of the words.
        clusters: list of `Cluster`, the frequent words first.
        gate: a `Gate`, or None if there are no rare clusters.

    Returns:
        Float32 (R,) (float64 for float64), in nats; NaN for an invalid id.
    """
    starts = cluster_starts(clusters)
    cluster_of = sum(ops.cast(ids >= start, "int32") for start in starts[1:-1])
    column = ids if gate is None else ops.where(cluster_of > 0, starts[1] - 1 + cluster_of, ids)
    head = head_logits(x, clusters[0], gate)
    nats = _nats(head, column)

    def tail_loss(rows, weights, words):
        return (_nats(word_logits(rows[0], Cluster(*weights))[0], words[0]),)

    for index, (cluster, start) in enumerate(zip(clusters[1:], starts[1:-1], strict=True), start=1):
        here, dtypes = cluster_of == index, (ops.dtype(nats),)
        (rare,) = apply_to_subset(tail_loss, here, [x], cluster, numbers=[ids - start], dtypes=dtypes)
        nats = nats + rare
    return ops.where(_is_word(ids, starts), nats, np.nan)


def _nats(logits, columns):
    # Words of other clusters are clipped: their results are not used.
    columns = ops.clip(ops.cast(columns, "int32"), 0, logits.shape[-1] - 1)
    chosen = ops.take_along_axis(logits, columns[:, None], axis=-1)[:, 0]
    return ops.logsumexp(logits, axis=-1) - chosen


def most_likely_word(x: Tensor, clusters: Sequence[Cluster], gate: Gate | None) -> Tensor:
    """Return the most likely word, exactly. A rare cluster is computed only if its probability exceeds the best so far.

    Args:
        x: float (R, D).
        clusters: list of `Cluster`, the frequent words first.
        gate: a `Gate`, or None.

    Returns:
        int32 (R,), the lowest id among equal probabilities.
    """
    starts = cluster_starts(clusters)
    head = log_softmax(head_logits(x, clusters[0], gate))
    best = max_over(head[..., : starts[1]], axis=-1)
    word = ops.cast(ops.argmax(head[..., : starts[1]], axis=-1), "int32")

    def most_likely_in_tail(rows, weights, numbers):
        logits = word_logits(rows[0], Cluster(*weights))[0]
        highest = max_over(logits, axis=-1) - ops.logsumexp(logits, axis=-1)
        return highest, ops.cast(ops.argmax(logits, axis=-1), "int32")

    for index, cluster in enumerate(clusters[1:]):
        log_p_cluster = head[..., starts[1] + index]
        needed = log_p_cluster > best
        dtypes = (ops.dtype(best), "int32")
        highest, rare = apply_to_subset(most_likely_in_tail, needed, [x], cluster, dtypes=dtypes)
        better = ops.logical_and(needed, log_p_cluster + highest > best)
        best = ops.where(better, log_p_cluster + highest, best)
        word = ops.where(better, rare + starts[index + 1], word)
    return word


HALVINGS = 7  # from all rows to 1/64, below which a matrix product is not faster


def apply_to_subset(
    function: Callable[[list[Tensor], Sequence[Tensor], list[Tensor]], tuple[Tensor, ...]],
    needed: Tensor,
    rows: Sequence[Tensor],
    weights: Sequence[Tensor] = (),
    numbers: Sequence[Tensor] = (),
    dtypes: Sequence[str] = ("float32",),
) -> tuple[Tensor, ...]:
    """Apply a row-wise function only to the rows that need it; the results of other rows are 0.

    Needed rows are gathered and padded to one of a few sizes, each twice the previous size. Each size is a branch of a
    switch. The function is applied to at most about twice the number of needed rows, or R / 64 rows if that is larger.
    If no row is needed, the cost is 0 and the weights are not read. The backward pass recomputes the function: a switch
    would store the residuals of all branches.

    Args:
        function: row-wise function (list of c rows, weights, list of c numbers) -> tuple of tensors (c,).
        needed: bool (R,), R at least 1.
        rows: list of float tensors (R, ...).
        weights: list of tensors that the function uses, including all that receive a gradient.
        numbers: list of integer tensors (R,).
        dtypes: dtypes of the results.

    Returns:
        Tuple of tensors (R,).
    """
    total = shape(needed)[0]
    sizes = [1 + (total - 1) // 2**halving for halving in reversed(range(HALVINGS))]
    sizes = sorted(set(sizes)) if isinstance(total, int) else sizes
    order = ops.argsort(ops.where(needed, 0, 1))
    ranks = ops.cumsum(ops.cast(needed, "int32")) - 1

    def compute(size, rows, weights):
        selected = order[:size]
        some_rows, some_numbers = ([ops.take(x, selected, axis=0) for x in tensors] for tensors in (rows, numbers))
        results = function(some_rows, weights, some_numbers)
        return tuple(ops.where(needed, ops.take(x, ops.minimum(ranks, size - 1), axis=0), 0) for x in results)

    def nothing(rows, weights):
        return tuple(ops.zeros_like(ranks, dtype=dtype) for dtype in dtypes)

    branches = [nothing, *(keras.remat(functools.partial(compute, size)) for size in sizes)]
    index = sum(ops.cast(ranks[-1] + 1 > size, "int32") for size in (0, *sizes[:-1]))
    return ops.switch(index, branches, list(rows), list(weights))
