"""Runs with segment memory and adaptive spans, with masked tokens, and with every kind of attention."""

import importlib
import json
import math

import numpy as np
import pytest

from tests.trainers import task_runs
from tests.trainers.task_runs import check_resumed_run
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation, training, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints
from tf_sparse_attention.trainers.tasks import registry

SPAN = {"layer": "AllAttention", "num_heads": 1, "key_dim": 8, "num_persistent": 4, "window": 32, "dropout": 0.1}
SPAN |= {"adaptive_span": {"ramp": 2, "loss": 1e-3, "initial": 0.3}, "position": "relative"}


@pytest.fixture
def memory_config(tiny_config):
    """A configuration with segment memory. Windows shrink to the learned spans after every third step."""
    tiny_config.data.update(sequence_length=32)
    tiny_config.model.update(num_layers=1, intermediate_dim=None, memory_length=48, attention=[SPAN])
    tiny_config.train.update(shrink_windows_every=3, shrink_windows_margin=2)
    return tiny_config


@pytest.mark.full
def test_a_run_with_memory_and_spans_resumes_bit_for_bit(memory_config, tmp_path, monkeypatch):
    memory_config.train.evaluate_every = 0
    folder = check_resumed_run(memory_config, tmp_path, monkeypatch)
    windows = Checkpoints(folder / workdir.CHECKPOINTS).newest_metadata()["windows"]
    assert windows and all(window < 32 for window in windows)


@pytest.mark.full
def test_a_run_with_memory_is_trained_and_evaluated_and_its_checkpoint_gives_its_model(memory_config, tmp_path):
    memory_config.train.update(num_steps=4, evaluate_every=0)
    model = training.train(memory_config, tmp_path).model
    assert all(window < 32 for window in model.computed_windows)
    ids = np.arange(2, 40, dtype="int32")[None]
    expected = np.asarray(model(ids))
    np.testing.assert_allclose(workdir.load_model(tmp_path)(ids), expected, rtol=0, atol=1e-6)
    result = evaluation.evaluate(tmp_path, "test")
    assert result["tokens"] == result["bytes"] + 3
    (tmp_path / workdir.MODEL).unlink()
    np.testing.assert_allclose(workdir.load_model(tmp_path)(ids), expected, rtol=0, atol=1e-6)


def make_masked(config):
    """Change the configuration to masked tokens, all but the settings of masks."""
    config.task = "masked"
    config.generate = base.get_config().generate
    return config


@pytest.mark.full
def test_only_masked_tokens_are_scored(tiny_config, tmp_path):
    config = make_masked(tiny_config)
    config.data.update(mask_rate=0.2, use_packing=False)
    config.model.causal = False
    config.model.attention = [
        {"layer": "ClusteredAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 4, "top_k": 4}
    ]
    task_runs.write_run(tmp_path, config)
    result = evaluation.evaluate(tmp_path, "test")
    assert result["tokens"] == pytest.approx(0.2 * 1700, rel=0.2)
    assert result["bytes"] == pytest.approx(result["tokens"], rel=0.01)
    assert result["bits_per_byte"] == pytest.approx(result["nats"] / math.log(2) / result["bytes"])
    assert "gzip -9" not in result
    assert f"only the {result['tokens']} masked tokens" in evaluation.as_text(result)
    with pytest.raises(ValueError, match="`model` must be causal to generate text"):
        task_runs.draw_samples(registry.load_task(tmp_path).make_sample_source(workdir.load_model(tmp_path)), length=4)


def test_a_task_of_masked_tokens_needs_a_mask_rate_and_is_not_causal(tiny_config):
    config = make_masked(tiny_config)
    for mask_rate, name in ((0.0, "data.mask_rate"), (0.1, "model.causal")):
        config.data.mask_rate = mask_rate
        with pytest.raises(ValueError, match=f"`config.{name}`"):
            registry.make_task(config)


# The loss that the last steps stay under, in nats per byte; an untrained model has ln 258 = 5.6. Seen: 1.73, 2.45, 2.56
# and 2.37.
CONFIGURATIONS = {
    ("all_attention_enwik8", "tiny"): 2.0,
    ("sparse_transformer_enwik8", "tiny"): 2.7,
    ("sparse_transformer_enwik8", "tiny_strided"): 2.8,
    ("clustered_text", "tiny"): 2.6,
}


@pytest.mark.large
@pytest.mark.parametrize(("name", "variant"), CONFIGURATIONS, ids=["-".join(names) for names in CONFIGURATIONS])
def test_the_loss_falls(name, variant, tmp_path):
    config = importlib.import_module(f"tf_sparse_attention.trainers.configs.{name}").get_config(variant)
    config.train.update(evaluate_every=0, checkpoint_every=0, deterministic=False)
    outcome = training.train(config, tmp_path / "run")
    assert outcome.step == config.train.num_steps
    rows = [line for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert rows
    losses = [json.loads(line)["loss"] for line in rows]
    assert losses[-1] < CONFIGURATIONS[name, variant] < losses[0]
    assert evaluation.evaluate(tmp_path / "run", "validation[:20]")["bits_per_byte"] < 5
