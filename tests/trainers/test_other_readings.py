"""Runs with segment memory and adaptive spans, and runs with masked tokens."""

import shutil

import numpy as np
import pytest

from tests.trainers.interrupted import SignalAt, arrays_of
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import callbacks, evaluation, sampling, training, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints
from tf_sparse_attention.trainers.tasks import registry

SPAN = {"layer": "AllAttention", "num_heads": 1, "key_dim": 8, "num_persistent": 4, "window": 32, "dropout": 0.1}
SPAN |= {"adaptive_span": {"ramp": 2, "loss": 1e-3, "initial": 0.3}, "position": "relative"}


def with_memory(config):
    """Add segment memory to a configuration. Windows shrink to the learned spans after every third step."""
    config.data.update(sequence_length=32)
    config.model.update(num_layers=1, intermediate_dim=None, memory_length=48)
    config.model.attention = [SPAN]
    config.train.update(shrink_windows_every=3, shrink_windows_margin=2)
    return config


@pytest.fixture(scope="module")
def trained(make_tiny_config, tmp_path_factory):
    """The directory and outcome of a trained run with segment memory."""
    config, folder = with_memory(make_tiny_config()), tmp_path_factory.mktemp("trained")
    config.train.update(num_steps=60, evaluate_every=0, checkpoint_every=20, shrink_windows_every=40)
    return folder, training.train(config, folder)


@pytest.mark.full
def test_a_run_with_memory_and_spans_resumes_bit_for_bit(make_tiny_config, tmp_path, monkeypatch):
    segments = with_memory(make_tiny_config())
    whole = training.train(segments, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopOnSignal", SignalAt)
        assert training.train(segments, tmp_path / "stopped").step == 5
    assert training.train(segments, tmp_path / "stopped").step == 8
    assert arrays_of(tmp_path / "stopped", 8) == arrays_of(tmp_path / "whole", 8)
    newest = Checkpoints(tmp_path / "stopped" / workdir.CHECKPOINTS).newest_metadata()
    assert newest["windows"] == whole.model.computed_windows
    assert all(window < 32 for window in newest["windows"])


def test_a_run_with_memory_is_evaluated_and_its_checkpoint_gives_its_model(trained, tmp_path):
    folder, outcome = shutil.copytree(trained[0], tmp_path / "run"), trained[1]
    ids = np.arange(2, 40, dtype="int32")[None]
    expected = np.asarray(outcome.model(ids))
    np.testing.assert_allclose(workdir.load_model(folder)(ids), expected, rtol=0, atol=1e-6)
    result = evaluation.evaluate(folder, "test")
    assert result["tokens"] == result["bytes"] + 3
    assert result["bits_per_byte"] < 5
    (folder / workdir.MODEL).unlink()
    np.testing.assert_allclose(workdir.load_model(folder)(ids), expected, rtol=0, atol=1e-6)


def test_masked_tokens_are_trained_on_and_scored(tiny_config, tmp_path):
    tiny_config.task = "masked"
    tiny_config.generate = base.get_config().generate
    tiny_config.data.update(mask_rate=0.2, use_packing=False)
    tiny_config.model.causal = False
    tiny_config.train.update(num_steps=2, evaluate_every=0)
    tiny_config.model.attention = [
        {"layer": "ClusteredAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 4, "top_k": 4}
    ]
    training.train(tiny_config, tmp_path)
    result = evaluation.evaluate(tmp_path, "test")
    assert result["tokens"] == pytest.approx(0.2 * 1700, rel=0.2)
    assert result["bytes"] == pytest.approx(result["tokens"], rel=0.01)
    assert 2 < result["bits_per_byte"] < 9
    assert "gzip -9" not in result
    text = evaluation.as_text(result)
    assert f"only the {result['tokens']} masked tokens" in text and "gzip" not in text and "word " not in text
    with pytest.raises(ValueError, match="`model` must be causal to generate text"):
        sampling.generate(registry.load_task(tmp_path).make_sample_source(workdir.load_model(tmp_path)), length=4)


def test_a_task_of_masked_tokens_needs_a_mask_rate_and_is_not_causal(tiny_config):
    tiny_config.task = "masked"
    tiny_config.generate = base.get_config().generate
    for mask_rate, name in ((0.0, "data.mask_rate"), (0.1, "model.causal")):
        tiny_config.data.mask_rate = mask_rate
        with pytest.raises(ValueError, match=f"`config.{name}`"):
            registry.make_task(tiny_config)
