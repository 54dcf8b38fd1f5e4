"""A routing layer for tests, its state, and what one training step should make of it, in NumPy."""

import numpy as np

from tests.contracts import SIZE, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import RoutingAttention

X = normal(2, 13, SIZE)
STATE = ("centroids", "sums", "counts", "unused")


def routing(**own):
    return RoutingAttention(**{"num_heads": 2, "key_dim": 4, "num_clusters": 3, "cluster_size": 4, "seed": 7, **own})


def ready(layer):
    """Return the layer, built, with random weights."""
    layer.build(X.shape)
    return with_random_weights(layer)


def state_of(layer):
    found = {weight.name: to_numpy(weight.value) for weight in layer.weights}
    return [found[name] for name in STATE]


def assert_same_state(state, layer):
    assert all(np.array_equal(a, b) for a, b in zip(state, state_of(layer), strict=True))


def learned(layer, x=X, **masks):
    """Return the state and the commitment loss that one training call should give, in NumPy."""
    weights = {"/".join(weight.path.split("/")[-2:]): to_numpy(weight.value) for weight in layer.weights}
    centroids, sums, counts = (
        weights[f"clusters/{name}"].astype("float64") for name in ("centroids", "sums", "counts")
    )
    names = ["query"] if layer.share_qk else ["query", "key"]
    seen_sums, seen_counts, losses = np.zeros_like(sums), np.zeros_like(counts), []
    for name in names:
        heads = np.einsum("btd,dnh->nbth", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"][:, None, None]
        heads = heads - heads.mean(-1, keepdims=True)
        heads = heads / np.sqrt(heads.var(-1, keepdims=True) + 1e-6)
        squares = []
        for b, t in zip(*np.nonzero(masks.get("query_mask", np.ones(x.shape[:2]))), strict=True):
            for n in range(len(heads)):
                nearest = np.argmax(centroids[n] @ heads[n, b, t])
                seen_sums[n, nearest] += heads[n, b, t]
                seen_counts[n, nearest] += 1
                squares.append(np.square(heads[n, b, t] - centroids[n, nearest]))
        losses.append(np.mean(squares))
    sums, counts = (d * old + (1 - d) * new for d, old, new in (
        (layer.ema_decay, sums, seen_sums), (layer.ema_decay, counts, seen_counts)
    ))  # fmt: skip
    total = counts.sum(-1, keepdims=True)
    smoothed = (counts + 1e-5) / (total + counts.shape[-1] * 1e-5) * total
    unused = np.where(seen_counts > 0, 0, weights["clusters/unused"] + 1)
    return (sums / smoothed[..., None], sums, counts, unused), layer.commitment_loss * sum(losses)
