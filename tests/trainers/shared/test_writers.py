"""Metrics, samples and pictures of a run: writers of the metrics, and what TensorBoard shows."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.hparams import plugin_data_pb2

import tf_sparse_attention as tsa
from tf_sparse_attention.data.sources.media_files import decode_wav
from tf_sparse_attention.trainers.shared import illustrations, training, workdir, writers
from tf_sparse_attention.trainers.tasks.task import Examples

SCALARS = {"loss": 1.23456789, "routing/a/used": 0.5, "routing/b/used": 1.0, "routing/a/entropy": 0.25}


def test_a_bar_shows_the_newest_metrics_and_a_line_for_a_validation(capsys):
    bar = writers.Bar(num_steps=4)
    bar.progress(2, 1.5)
    bar.write(2, {"loss": 1.5, "learning_rate": 0.01, "gradient_norm": 2.5, "tokens_per_second": 1234.0})
    bar.write(2, {"validation/bits_per_byte": 3.25})
    bar.progress(4, 0.5)
    shown = capsys.readouterr().out
    assert "4/4" in shown and "loss=0.5, " in shown and "step 2: validation bits per byte 3.25\n" in shown


def test_json_lines_later_than_the_step_of_a_resume_are_deleted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = writers.JsonLines(path, 0)
    for step in (1, 2, 3):
        first.write(step, {"loss": float(step)})
    path.write_bytes(path.read_bytes() + b'[1]\n{"step": "1\xff"}\n{"step": 4, "lo')
    again = writers.JsonLines(path, 2)
    again.write(3, {"loss": 9.0})
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 9.0)]


def test_tensorboard_gets_every_scalar_at_its_step_and_infinity_beyond_float32(tmp_path):
    writer = writers.TensorBoard(tmp_path, 0, {})
    writer.write(5, SCALARS | {"validation/loss": 9.0, "validation/perplexity_per_word": 1e300})
    # Validation has the same tag, and so the same chart, as training.
    assert events_of(tmp_path / "validation") == [(5, "loss", 9.0), (5, "perplexity_per_word", np.inf)]
    events = events_of(tmp_path / "train")
    assert sorted((step, tag) for step, tag, _ in events) == sorted((5, tag) for tag in SCALARS)
    assert {tag: value for _, tag, value in events} == SCALARS


def test_tensorboard_gets_the_settings_texts_pictures_and_sounds(tmp_path):
    writer = writers.TensorBoard(tmp_path, 0, {"train.num_steps": 7, "model.norm": "pre", "model.dropout": None})
    pictures, sounds = {"spans": np.full((2, 3, 4), 255, "uint8")}, {"sound": (np.int16([1, -2, 3]), 8)}
    writer.show(5, Examples({}, {"sample": "def f():\n  return"}, pictures, sounds))
    events = list(summaries(tmp_path / "validation"))
    assert [(step, value.tag) for step, value in events] == [(5, "sample"), (5, "spans"), (5, "sound")]
    assert tf.make_ndarray(events[0][1].tensor) == b"    def f():\n      return\n"
    picture, sound = events[1][1].image, events[2][1].audio
    assert (picture.width, picture.height) == (3, 2)
    assert (tf.io.decode_png(picture.encoded_image_string).numpy() == 255).all()
    assert decode_wav(sound.encoded_audio_string).samples.tolist() == [1, -2, 3]
    ((_, session),) = [event for event in summaries(tmp_path) if "session_start" in event[1].tag]
    content = plugin_data_pb2.HParamsPluginData.FromString(session.metadata.plugin_data.content)
    given = content.session_start_info.hparams
    assert given["train.num_steps"].number_value == 7 and given["model.norm"].string_value == "pre"
    assert set(given) == {"train.num_steps", "model.norm"}


def summaries(folder):
    for path in folder.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            yield from ((event.step, value) for value in event.summary.value)


def events_of(folder):
    return [(step, value.tag, pytest.approx(value.simple_value)) for step, value in summaries(folder)]


def test_a_terminal_gets_a_bar_and_a_log_gets_lines(tmp_path, monkeypatch):
    for is_terminal, kind in ((True, writers.Bar), (False, writers.Lines)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer, raising=False)
        opened = writers.open_writers(tmp_path, num_steps=3, start_step=0, settings={})
        assert [type(writer) for writer in opened] == [kind, writers.JsonLines, writers.TensorBoard]


SPAN = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 8, "adaptive_span": True}
ROUTING = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 4, "num_clusters": 2, "cluster_size": 8}


def model_of(*parts):
    return tsa.models.LanguageModel(tsa.models.Backbone(258, 2, 8, list(parts), intermediate_dim=16, seed=0))


@pytest.mark.full
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
