"""Converted checkpoints compute what the published code computes from the same files."""

import warnings

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import CASES
from tests.draws import first
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.members import best_members

# By default the logits of all, from which the rest follows.
first_cases = pytest.mark.parametrize("published", first(CASES, 2), indirect=True)
WITHOUT_DROPOUT = {"layer_prepostprocess_dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0}


@pytest.fixture(autouse=True)
def looks_ahead():
    """The published selection says that it looks ahead."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not causal")
        yield


@pytest.fixture
def model(published):
    return tsa.convert.from_t2t_checkpoint(published.folder, WITHOUT_DROPOUT)


def equal(actual, published, atol=2e-5):
    np.testing.assert_allclose(np.asarray(actual), published, rtol=0, atol=atol)


def test_logits_and_the_loss_of_each_token_are_the_published_ones(published, model):
    logits = model(published.inputs)
    equal(logits, published.arrays["logits"])
    nats = tsa.models.metrics.nats_of(published.arrays["targets"], logits)
    equal(nats, published.arrays["xent"])
    loss = tsa.models.language_model_loss()(published.arrays["targets"], logits)
    equal(loss, published.arrays["loss"], atol=1e-5)


@first_cases
def test_what_every_sublayer_returns_is_published(published, model):
    backbone, arrays = model.backbone, published.arrays
    x = backbone.embedding_projection(backbone.embedding(published.inputs))
    equal(x, arrays["decoder_input"])
    for number, block in enumerate(backbone.blocks):
        attended = block._attention_norm(x + block.attention(x, use_causal_mask=True))
        equal(attended, arrays[f"layer_{number}/attention"])
        x = block(x)
        equal(x, arrays[f"layer_{number}/hidden"])
    equal(x, arrays["decoder_output"])


@first_cases
def test_clusters_have_the_published_members_and_losses(published, model):
    if not published.routed:
        assert not [weight for weight in model.weights if "centroids" in weight.path]
        return
    x, backbone = model.backbone.embedding_projection(model.backbone.embedding(published.inputs)), model.backbone
    for number, block in enumerate(backbone.blocks):
        if number in published.routed:
            _compare_clusters(block.attention.parts[0], x, published.arrays, f"layer_{number}/")
        x = block(x)


def _compare_clusters(part, x, arrays, layer):
    query = part.project(x)[0]
    scores = kmeans.scores(query, part.centroids)
    equal(-scores, arrays[layer + "dists"])
    clusters = kmeans.nearest(query, part.centroids)
    np.testing.assert_array_equal(best_members(scores, part.cluster_size)[0], arrays[layer + "idx"])
    np.testing.assert_array_equal(clusters, arrays[layer + "nearest"])
    loss = part.commitment_loss * kmeans.commitment(query, clusters, part.centroids, None)
    equal(loss, arrays[layer + "cluster_loss"], atol=1e-9)


@first_cases
def test_the_loss_of_the_clusters_is_the_published_one_which_tells_means_from_their_sums(published, model):
    model(published.inputs, training=True)
    equal(sum(model.losses), published.arrays["extra_loss"], atol=1e-8)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_the_models_are_the_same_on_jax(case, references, run_jax):
    far = run_jax(
        f"""
import pathlib, warnings
import numpy as np
import tf_sparse_attention as tsa
from tests.convert.t2t.cases import Published
warnings.simplefilter("ignore")
published = Published(pathlib.Path({str(references / "t2t_checkpoints" / case)!r}))
model = tsa.convert.from_t2t_checkpoint(published.prefix)
print(float(np.abs(np.asarray(model(published.inputs)) - published.arrays["logits"]).max()))
"""
    )
    assert float(far) < 2e-5
