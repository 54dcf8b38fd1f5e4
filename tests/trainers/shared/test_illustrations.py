"""Samples and pictures of a model in TensorBoard."""

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.trainers.shared.test_writers import summaries
from tf_sparse_attention.trainers.shared import illustrations, training, workdir
from tf_sparse_attention.trainers.tasks.task import Examples

SPAN = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 8, "adaptive_span": True}
ROUTING = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 4, "num_clusters": 2, "cluster_size": 8}


def model_of(*parts):
    return tsa.models.LanguageModel(tsa.models.Backbone(258, 2, 8, list(parts), intermediate_dim=16, seed=0))


def test_spans_and_the_routes_of_each_layer_are_drawn():
    text = "words that look at words " * 4
    for parts, names in [
        ([SPAN, ROUTING], ["spans", "routes/layer_0_head_2", "routes/layer_1_head_2"]),
        ([{**SPAN, "adaptive_span": False}], []),
    ]:
        drawn = list(illustrations.pictures(model_of(*parts), tsa.data.ByteTokenizer(), text))
        assert [name for name, _ in drawn] == names
        for _, picture in drawn:
            assert picture.dtype == "uint8" and picture.shape[2] == 4 and picture[..., :3].std() > 1


def test_the_use_of_clusters_is_reported_and_drawn():
    model, ids = model_of(SPAN, ROUTING), np.arange(1, 61)
    reports = illustrations.ClusterReports(model)
    shown, report = reports.examples(ids), tsa.analysis.health(model, ids[None].astype("int32"))
    scalars = shown.scalars
    own = [head for head in report.heads if head.layer.endswith("block_1/attention/routing_1")]
    assert len(own) == 2 and all(sum(head.shares) == pytest.approx(1) for head in own)
    assert scalars["routing/block_1/attention/routing_1/dead"] == np.mean([head.dead / 2 for head in own])
    assert scalars["routing/block_0/attention/routing_1/overfull"] > 0 and len(scalars) == 6
    assert shown.texts == {"health": str(report)}
    scalars = reports.examples(ids).scalars
    assert scalars["routing/block_1/attention/routing_1/drift"] == 0
    assert list(shown.pictures) == ["clusters/block_0/attention/routing_1", "clusters/block_1/attention/routing_1"]
    assert all(picture[..., :3].std() > 1 for picture in shown.pictures.values())
    model = model_of({**SPAN, "adaptive_span": False})
    assert illustrations.ClusterReports(model).examples(ids) == Examples()


@pytest.mark.full
def test_a_run_shows_pictures_at_each_validation_and_has_the_same_weights(finished, make_tiny_config, tmp_path):
    config = make_tiny_config()
    config.train.illustrate = True
    model = training.train(config, tmp_path).model
    shown = [(step, value.tag) for step, value in summaries(tmp_path / workdir.TENSORBOARD / "validation")]
    expected = {"sample", "health", "routes/layer_0_head_0", "clusters/block_0/attention/routing_0", "bits_per_byte"}
    for step in (4, 8):
        assert {tag for at, tag in shown if at == step} >= expected
    reports = [(step, value.tag) for step, value in summaries(tmp_path / workdir.TENSORBOARD / "train")]
    path = "routing/block_0/attention/routing_0"
    assert {(at, f"{path}/{name}") for at in (4, 8) for name in ("dead", "overfull", "dropped")} <= set(reports)
    assert (8, f"{path}/drift") in reports and (4, f"{path}/drift") not in reports  # from one report to the next
    for own, other in zip(model.get_weights(), finished[1].model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)
