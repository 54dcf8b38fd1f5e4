"""The scores of a language model: every token once, in nats."""

import math
import types

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation
from tf_sparse_attention.trainers.shared.devices import OneDevice, choose_devices
from tf_sparse_attention.trainers.tasks import language_model

WHOLE = "test"


@pytest.fixture(scope="module")
def make_task(text_folder, data_dir):
    """Function that creates a byte-level task with a batch size and a window length."""

    def make(batch_size, sequence_length):
        config = base.get_config()
        config.data.update(path=str(text_folder), data_dir=str(data_dir))
        config.data.update(batch_size=batch_size, sequence_length=sequence_length)
        return language_model.Task(config)

    return make


def make_model():
    keras.utils.set_random_seed(0)
    part = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 16}
    return tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 8, [part], intermediate_dim=8, seed=0))


def nats_one_by_one(model, store, sequence_length, num_windows):
    """Return the total nats of evenly spaced windows, one by one, in float64."""
    total, all_windows = 0.0, -(-store.num_tokens // sequence_length)
    for begin in (window * all_windows // num_windows * sequence_length for window in range(num_windows)):
        tokens = np.asarray(store.tokens[begin : begin + sequence_length], "int32")[None]
        inputs, targets, _ = tsa.data.pack_windows(tokens)
        logits = np.float64(model(inputs))[0]
        for row, target in zip(logits, np.asarray(targets)[0], strict=True):
            total += np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[target]
    return total


def score(task, devices, limit=None):
    """Return the validation of an untrained model, and its totals and scores."""
    with devices.scope():
        validation = language_model.Validation(task, make_model(), WHOLE, limit)
        evaluator = evaluation.Evaluator(validation, devices, devices.execution(False, 1))
        totals = evaluator.totals(validation.batches()[""])
    return validation, {**totals, **validation.metrics(totals)}


@pytest.mark.parametrize(("batch_size", "limit"), first([(5, None), (2, 3), (4, None)], 2))
def test_nats_equal_those_of_single_windows(make_task, batch_size, limit):
    validation, found = score(make_task(batch_size, 100), OneDevice(), limit)
    store = validation.store
    num_windows = -(-store.num_tokens // 100) if limit is None else limit
    expected = nats_one_by_one(validation.model, store, 100, num_windows)
    assert found["nats"] == pytest.approx(expected, rel=1e-6)
    assert found["tokens"] == min(100 * num_windows, store.num_tokens)


def test_the_whole_text_has_its_own_counts(make_task):
    validation, found = score(make_task(8, 64), OneDevice())
    store, details = validation.store, validation.details(None, found)
    assert (details["bytes"], details["words"]) == (store.num_bytes, store.num_words)
    assert found["tokens"] == store.num_tokens == details["bytes"] + store.num_documents
    assert details["windows"] == -(-store.num_tokens // 64)


def test_two_replicas_score_as_one_device(make_task):
    config = base.get_config()
    config.train.num_logical_cpus = 2
    results = [score(make_task(4, 100), devices)[1] for devices in (OneDevice(), choose_devices(config))]
    assert results[1]["nats"] == pytest.approx(results[0]["nats"], rel=1e-6)
    assert results[1]["tokens"] == results[0]["tokens"]


def metrics_for(nats, num_tokens, num_bytes, num_words):
    """Return the scores of a text with these counts."""
    store = types.SimpleNamespace(num_tokens=num_tokens, num_bytes=num_bytes, num_words=num_words, num_documents=1)
    task = types.SimpleNamespace(source=types.SimpleNamespace(name="text"))
    validation = types.SimpleNamespace(store=store, task=task, split=WHOLE)
    validation._counts = lambda tokens: language_model.Validation._counts(validation, tokens)
    return language_model.Validation.metrics(validation, {"nats": nats, "tokens": num_tokens})


def test_metrics_for_a_text_worked_by_hand():
    # Eight tokens of seven bytes and two words, each token predicted with probability 1/4.
    metrics = metrics_for(8 * math.log(4), num_tokens=8, num_bytes=7, num_words=2)
    assert metrics["loss"] == pytest.approx(math.log(4))
    assert metrics["bits_per_byte"] == pytest.approx(16 / 7)
    assert metrics["perplexity"] == pytest.approx(4)
    assert metrics["perplexity_per_word"] == pytest.approx(4**4)


@pytest.mark.parametrize("num_words", [0, 1])
def test_a_perplexity_too_large_for_a_float_is_none(num_words):
    assert metrics_for(1000.0, num_tokens=500, num_bytes=500, num_words=num_words)["perplexity_per_word"] is None


def test_a_text_with_probability_one_has_perplexity_one():
    metrics = metrics_for(0.0, num_tokens=8, num_bytes=7, num_words=2)
    assert (metrics["bits_per_byte"], metrics["perplexity"], metrics["perplexity_per_word"]) == (0.0, 1.0, 1.0)


def test_a_text_without_words_has_no_perplexity_per_word():
    assert metrics_for(0.0, num_tokens=8, num_bytes=7, num_words=0)["perplexity_per_word"] is None
