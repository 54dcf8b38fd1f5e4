"""Runs that read segments with a memory and adaptive spans, and runs that guess hidden tokens."""

import numpy as np
import pytest

from tests.trainers.interrupted import SignalAt, arrays_of
from trainers import callbacks, evaluation, sampling, sources, training, workdir
from trainers.checkpoints import Checkpoints

SPAN = {"layer": "AllAttention", "num_heads": 1, "key_dim": 8, "num_persistent": 4, "window": 32, "dropout": 0.1}
SPAN |= {"adaptive_span": {"ramp": 2, "loss": 1e-3, "initial": 0.3}, "position": "relative"}


@pytest.fixture
def segments(tiny_config):
    """Eight steps of segments with a memory; the spans decide what is computed after every third step."""
    tiny_config.data.update(sequence_length=32)
    tiny_config.model.update(num_layers=2, intermediate_dim=None, memory_length=48)
    tiny_config.model.attention = [SPAN]
    tiny_config.train.update(fit_windows_every=3, fit_windows_margin=2)
    return tiny_config


def test_a_run_with_memory_and_spans_goes_on_bit_for_bit(segments, tmp_path, monkeypatch):
    whole = training.train(segments, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopOnSignal", SignalAt)
        assert training.train(segments, tmp_path / "stopped").step == 5
    assert training.train(segments, tmp_path / "stopped").step == 8
    assert arrays_of(tmp_path / "stopped", 8) == arrays_of(tmp_path / "whole", 8)
    newest = Checkpoints(tmp_path / "stopped" / workdir.CHECKPOINTS).newest_metadata()
    assert newest["windows"] == whole.model.computed_windows
    assert all(window < 32 for window in newest["windows"])


def test_a_checkpoint_of_a_run_with_memory_gives_its_model(segments, tmp_path):
    outcome = training.train(segments, tmp_path)
    ids = np.arange(2, 40, dtype="int32")[None]
    expected = np.asarray(outcome.model(ids))
    np.testing.assert_allclose(workdir.load_model(tmp_path)(ids), expected, rtol=0, atol=1e-6)
    (tmp_path / workdir.MODEL).unlink()
    np.testing.assert_allclose(workdir.load_model(tmp_path)(ids), expected, rtol=0, atol=1e-6)


def test_an_evaluation_with_memory_scores_every_token(segments, tmp_path):
    segments.train.update(num_steps=60, evaluate_every=0)
    training.train(segments, tmp_path)
    result = evaluation.evaluate(tmp_path, "test")
    assert result["tokens"] == result["bytes"] + 3
    assert result["bits_per_byte"] < 5


def test_hidden_tokens_are_trained_on_and_scored(tiny_config, tmp_path):
    tiny_config.data.update(mask_rate=0.2, packed=False)
    tiny_config.model.causal = False
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
    assert f"{result['tokens']} hidden tokens alone" in text and "gzip" not in text and "word " not in text
    with pytest.raises(ValueError, match="`model` must be causal to continue a text"):
        sampling.generate(sources.of_run(tmp_path), length=4)
