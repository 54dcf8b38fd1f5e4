"""Converted checkpoints compute what the published code computes from the same files."""

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import CASES, Published
from tests.draws import first
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.members import best_members

pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")  # as published

WITHOUT_DROPOUT = {"layer_prepostprocess_dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0}


def equal(actual, published, atol=2e-5):
    np.testing.assert_allclose(np.asarray(actual), published, rtol=0, atol=atol)


@pytest.mark.parametrize("name", first(CASES, 1))
def test_states_clusters_logits_and_losses_are_published(name, references):
    published = Published(references / "t2t_checkpoints" / name)
    model = tsa.convert.from_t2t_checkpoint(published.folder, WITHOUT_DROPOUT)
    backbone, arrays = model.backbone, published.arrays
    x = backbone.embedding_projection(backbone.embedding(published.inputs))
    equal(x, arrays["decoder_input"])
    for number, block in enumerate(backbone.blocks):
        if number in published.routed:
            _compare_clusters(block.attention.parts[0], x, arrays, f"layer_{number}/")
        attended = block._attention_norm(x + block.attention(x, use_causal_mask=True))
        equal(attended, arrays[f"layer_{number}/attention"])
        x = block(x)
        equal(x, arrays[f"layer_{number}/hidden"])
    equal(x, arrays["decoder_output"])
    assert published.routed or not [weight for weight in model.weights if "centroids" in weight.path]
    logits = model(published.inputs)
    equal(logits, arrays["logits"])
    equal(tsa.models.metrics.nats_of(arrays["targets"], logits), arrays["xent"])
    equal(tsa.models.language_model_loss()(arrays["targets"], logits), arrays["loss"], atol=1e-5)
    # The loss of the clusters distinguishes means from their sums.
    model(published.inputs, training=True)
    equal(sum(model.losses), arrays["extra_loss"], atol=1e-8)


def _compare_clusters(part, x, arrays, layer):
    query = part.project(x)[0]
    scores = kmeans.scores(query, part.centroids)
    equal(-scores, arrays[layer + "dists"])
    clusters = kmeans.nearest(query, part.centroids)
    np.testing.assert_array_equal(best_members(scores, part.cluster_size)[0], arrays[layer + "idx"])
    np.testing.assert_array_equal(clusters, arrays[layer + "nearest"])
    loss = part.commitment_loss * kmeans.commitment(query, clusters, part.centroids, None)
    equal(loss, arrays[layer + "cluster_loss"], atol=1e-9)
