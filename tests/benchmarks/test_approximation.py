"""Clustered attention in place of the dense attention of a trained classifier."""

import keras
import numpy as np

from benchmarks import approximation
from tests.contracts import with_random_weights
from tf_sparse_attention.models import Backbone, SequenceClassifier

DENSE = {"layer": "DenseAttention", "num_heads": 2, "key_dim": 4, "position": "rotary"}
T = 12


def logits_of(model):
    ids = np.random.default_rng(1).integers(2, 20, (2, T)).astype("int32")
    return keras.ops.convert_to_numpy(model({"token_ids": ids, "padding_mask": np.arange(T) < [[T], [7]]}))


def test_with_the_best_keys_of_all_nothing_changes_and_with_few_clusters_something_does():
    # Random weights, so that one that is not taken over shows.
    model = with_random_weights(SequenceClassifier(Backbone(20, 2, 8, [DENSE], 12, causal=False, seed=0), 3))
    exact = logits_of(model)
    for arguments, is_same in (({"num_clusters": 2, "top_k": T}, True), ({"num_clusters": 2}, False)):
        found = logits_of(approximation.with_attention(model, **arguments))
        assert np.allclose(found, exact, atol=1e-4) == is_same
