"""Scoring: every token once, in nats."""

import math

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import scoring
from tf_sparse_attention.trainers.shared.devices import OneDevice, choose_devices


@pytest.fixture(scope="module")
def store(text_folder, data_dir):
    source = tsa.data.open_source(path=str(text_folder), data_dir=str(data_dir))
    return tsa.data.open_token_store(source, tsa.data.ByteTokenizer(), "test")


def make_model():
    keras.utils.set_random_seed(0)
    part = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 16}
    return tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 8, [part], intermediate_dim=8, seed=0))


def nats_one_by_one(model, store, sequence_length, num_windows):
    """The slow way: one window after the other, evenly spread, softmax and sum in float64."""
    total, all_windows = 0.0, -(-store.num_tokens // sequence_length)
    for begin in (window * all_windows // num_windows * sequence_length for window in range(num_windows)):
        tokens = np.asarray(store.tokens[begin : begin + sequence_length], "int32")[None]
        inputs, targets, _ = tsa.data.pack_windows(tokens)
        logits = np.float64(model(inputs))[0]
        for row, target in zip(logits, np.asarray(targets)[0], strict=True):
            total += np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[target]
    return total


@pytest.mark.parametrize(("batch_size", "max_windows"), first([(5, None), (2, 3), (4, None)], 2))
def test_nats_are_those_of_one_window_after_the_other(store, batch_size, max_windows):
    model = make_model()
    devices = OneDevice()
    scorer = scoring.make_scorer(model, devices.execution(False, 1), batch_size)
    result = scoring.score(scorer, store, devices, batch_size, 100, use_packing=True, max_windows=max_windows)
    num_windows = -(-store.num_tokens // 100) if max_windows is None else max_windows
    assert result["nats"] == pytest.approx(nats_one_by_one(model, store, 100, num_windows), rel=1e-6)
    assert result["windows"] == num_windows
    assert result["tokens"] == min(100 * num_windows, store.num_tokens)


def test_the_whole_text_has_its_own_counts(store):
    devices = OneDevice()
    scorer = scoring.make_scorer(make_model(), devices.execution(False, 1), 8)
    result = scoring.score(scorer, store, devices, 8, 64, use_packing=True)
    assert (result["bytes"], result["words"], result["tokens"]) == (store.num_bytes, store.num_words, store.num_tokens)
    assert result["tokens"] == result["bytes"] + store.num_documents


def test_two_replicas_score_as_one_device(store):
    config = base.get_config()
    config.train.num_logical_cpus = 2
    results = []
    for devices in (OneDevice(), choose_devices(config)):
        with devices.scope():
            scorer = scoring.make_scorer(make_model(), devices.execution(False, 1), 4)
            results.append(scoring.score(scorer, store, devices, 4, 100, use_packing=True))
    assert results[1]["nats"] == pytest.approx(results[0]["nats"], rel=1e-6)
    assert results[1]["windows"] == results[0]["windows"]


def test_figures_of_a_text_worked_by_hand():
    # Eight tokens of seven bytes and two words, each token predicted with probability 1/4.
    figures = scoring.compute_metrics(nats=8 * math.log(4), tokens=8, num_bytes=7, num_words=2)
    assert figures["bits_per_byte"] == pytest.approx(16 / 7)
    assert figures["perplexity"] == pytest.approx(4)
    assert figures["perplexity_per_word"] == pytest.approx(4**4)


@pytest.mark.parametrize("num_words", [0, 1])
def test_a_perplexity_that_no_float_holds_is_none(num_words):
    assert (
        scoring.compute_metrics(nats=1000.0, tokens=500, num_bytes=500, num_words=num_words)["perplexity_per_word"]
        is None
    )


def test_a_text_that_was_certain_has_a_perplexity_of_one():
    figures = scoring.compute_metrics(nats=0.0, tokens=8, num_bytes=7, num_words=2)
    assert (figures["bits_per_byte"], figures["perplexity"], figures["perplexity_per_word"]) == (0.0, 1.0, 1.0)


def test_a_text_without_words_has_no_perplexity_per_word():
    assert scoring.compute_metrics(nats=0.0, tokens=8, num_bytes=7, num_words=0)["perplexity_per_word"] is None
