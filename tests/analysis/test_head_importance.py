"""What each head is worth: the loss with its rows of the output projection at zero."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.analysis import head_importance
from tf_sparse_attention.models import Backbone, LanguageModel, language_model_loss

PARTS = [
    {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 5},
    {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 4, "seed": 0}
    | {"use_successor_values": True},
]


def model_and_batches():
    model = LanguageModel(Backbone(20, 1, 8, PARTS, intermediate_dim=8, name="text"))
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(random.standard_normal(weight.shape))
    batches = [random.integers(1, 20, (2, 12)) for _ in range(2)]
    return model, [(ids, np.roll(ids, -1, axis=1)) for ids in batches]


def loss_of(model, batches):
    return np.mean([float(language_model_loss()(targets, model(ids))) for ids, targets in batches])


def test_a_head_is_worth_what_its_rows_of_the_output_projection_are():
    model, batches = model_and_batches()
    found, whole = head_importance(model, batches), loss_of(model, batches)
    assert found.loss == pytest.approx(whole, abs=1e-6)
    kinds = [("LocalAttention", 0), ("LocalAttention", 1), ("RoutingAttention", 0)]
    assert [(head.kind, head.head) for head in found.heads] == kinds
    layers = [part for block in model.backbone.blocks for part in block.attention.parts]
    heads = [(layer, head) for layer in layers for head in range(layer.num_heads)]
    for (layer, head), row in zip(heads, found.heads, strict=True):
        kernel = layer.output_dense.kernel
        kept = keras.ops.convert_to_numpy(kernel).copy()
        kernel.assign(kept * (np.arange(layer.num_heads) != head)[:, None, None])
        assert row.layer == layer.path
        assert row.rise == pytest.approx(loss_of(model, batches) - whole, abs=1e-5)
        kernel.assign(kept)
    assert max(abs(head.rise) for head in found.heads) > 0.01
    assert loss_of(model, batches) == whole  # nothing is left behind
    assert "| text/block_0/attention/routing_1 | RoutingAttention | " in str(found)


@pytest.mark.full
def test_another_loss_and_weights_beside_the_targets():
    model, batches = model_and_batches()
    given = [(ids, targets, np.ones(ids.shape)) for ids, targets in batches]
    found = head_importance(model, given, loss=lambda targets, outputs: keras.ops.mean(outputs))
    assert found.loss == pytest.approx(np.mean([float(keras.ops.mean(model(ids))) for ids, _ in batches]), abs=1e-5)


IDS = np.ones((1, 4), int)


def test_invalid_arguments_are_errors(subtests):
    model, pairs = model_and_batches()
    for batches, found in [
        ([], "none"),
        (None, "NoneType instead of a pair"),
        ((IDS, IDS), "ndarray instead of a pair"),
        ([(IDS,)], "tuple instead of a pair"),
        ([{"token_ids": IDS, "targets": IDS}], "dict instead of a pair"),
    ]:
        message = rf"`batches` must be pairs of inputs and targets. Received: {found}\."
        with subtests.test(found), pytest.raises(ValueError, match=message):
            head_importance(model, batches)
    for loss in ("mse", lambda targets, outputs: None):
        with subtests.test(loss=str(loss)), pytest.raises(ValueError, match="`loss`"):
            head_importance(model, pairs, loss)
    with pytest.raises(ValueError, match="`model`"):
        head_importance(keras.Sequential([keras.layers.Embedding(20, 8)]), pairs)
