"""One head of clustered attention by the book, in NumPy: a case of `layers.py`."""

import numpy as np

from tests.oracle import attention


def clustered(head):
    """Return output, weights and pattern of a head: the mean query of a cluster asks for all of its members.

    Improved: of its best keys each member shares out the cluster's weight by its own scores.
    """
    layer, positions = head.layer, (np.arange(len(head.query)), np.arange(len(head.key)))
    query, key = head.query, head.key
    if layer.position == "rotary":
        query, key = attention.rotate(query, positions[0]), attention.rotate(key, positions[1])
    scale = layer.head_settings.attention_scale or layer.key_dim**-0.5
    seen = np.broadcast_to(head.allowed, (len(query), len(key))) & head.key_exists
    weights = np.zeros(seen.shape)
    clusters = _clusters(query, head.query_exists, head.weights["planes"], layer)
    for cluster in set(clusters[head.query_exists]):
        members = np.flatnonzero((clusters == cluster) & head.query_exists)
        weights[members] = _softmax(query[members].mean(0) @ key.T * scale, seen[members[0]])
        if layer.top_k is not None:
            for member in members:
                weights[member] = _improved(weights[member], query[member] @ key.T * scale, seen, layer)
    return weights @ head.value, weights, seen


def _improved(weights, scores, seen, layer):
    best = np.zeros(len(weights), bool)
    best[np.argsort(-weights, kind="stable")[: layer.top_k]] = True
    best &= seen[0]
    return np.where(best, weights[best].sum() * _softmax(scores, best), weights)


def _softmax(scores, seen):
    if not seen.any():
        return np.zeros(len(scores))
    shares = np.where(seen, np.exp(scores - scores[seen].max()), 0.0)
    return shares / shares.sum()


def _clusters(query, exists, planes, layer):
    """Return the cluster of each query by k-means on its bits; starts are existing queries, evenly spaced."""
    bits = query @ planes[:, :-1].T > planes[:, -1]
    tokens = np.flatnonzero(exists)
    if len(tokens) == 0:
        return np.zeros(len(query), int)
    centroids = bits[[tokens[rank * len(tokens) // layer.num_clusters] for rank in range(layer.num_clusters)]].copy()
    for iteration in range(layer.num_iterations):
        distances = (bits[:, None] != centroids[None]).sum(-1)
        clusters = distances.argmin(1)  # the lowest of equal ones
        if iteration < layer.num_iterations - 1:
            for cluster in range(layer.num_clusters):
                members = bits[exists & (clusters == cluster)]
                if len(members):
                    centroids[cluster] = 2 * members.sum(0) > len(members)
    return clusters
