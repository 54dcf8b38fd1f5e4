"""The scores of a language model: every token once, in nats, and the compression it is compared with."""

import gzip
import lzma
import math
import types

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation
from tf_sparse_attention.trainers.shared.devices import choose_devices
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


@pytest.mark.parametrize(("num_replicas", "batch_size", "limit"), first([(1, 2, 3), (2, 4, None)], 1))
def test_nats_equal_those_of_single_windows(make_task, num_replicas, batch_size, limit):
    config = base.get_config()
    config.train.num_logical_cpus = num_replicas
    devices = choose_devices(config)
    validation, found = score(make_task(batch_size, 100), devices, limit)
    store = validation.store
    num_windows = limit or -(-store.num_tokens // 100)
    with devices.scope():
        expected = nats_one_by_one(make_model(), store, 100, num_windows)
    assert found["nats"] == pytest.approx(expected, rel=1e-6)
    assert found["tokens"] == min(100 * num_windows, store.num_tokens)


def metrics_for(nats, num_tokens, num_bytes, num_words):
    """Return the scores of a text with these counts."""
    store = types.SimpleNamespace(num_tokens=num_tokens, num_bytes=num_bytes, num_words=num_words, num_documents=1)
    task = types.SimpleNamespace(source=types.SimpleNamespace(name="text"))
    validation = types.SimpleNamespace(store=store, task=task, split=WHOLE)
    validation._counts = lambda tokens: language_model.Validation._counts(validation, tokens)
    return language_model.Validation.metrics(validation, {"nats": nats, "tokens": num_tokens})


def test_scores_of_a_text_worked_by_hand():
    # Eight tokens of seven bytes and two words, each token predicted with probability 1/4.
    metrics = metrics_for(8 * math.log(4), num_tokens=8, num_bytes=7, num_words=2)
    names = "loss", "bits_per_byte", "perplexity", "perplexity_per_word"
    assert [metrics[name] for name in names] == pytest.approx([math.log(4), 16 / 7, 4, 4**4])
    certain = metrics_for(0.0, num_tokens=8, num_bytes=7, num_words=2)
    assert [certain[name] for name in names] == [0.0, 0.0, 1.0, 1.0]


def test_a_perplexity_per_word_without_words_or_too_large_for_a_float_is_none_with_the_reason():
    row = {"task": "language_model", "split": "test", "data": "d", "bytes": 1, "tokens": 2, "bits_per_byte": 1.0}
    row |= {"gzip -9": 2.0, "xz -9": 2.0, "perplexity": 3.0, "words_are": "counted", "seconds": 1.0}
    row["settings"] = {"mask_rate": 0.0}
    for nats, num_words, reason in [
        (1000.0, 0, "no words"),
        (1000.0, 1, "too large for a float"),
        (0.0, 0, "no words"),
    ]:
        value = metrics_for(nats, num_tokens=500, num_bytes=500, num_words=num_words)["perplexity_per_word"]
        assert value is None
        text = evaluation.as_text({**row, "words": num_words, "perplexity_per_word": value})
        assert f"perplexity per word   {reason}\n" in text


def test_gzip_and_xz_compress_the_documents_as_one_stream():
    generator = np.random.default_rng(0)
    documents = [bytes(generator.integers(97, 105, 500, dtype=np.uint8)) for _ in range(4)]
    joined = b"".join(documents)
    assert language_model.compressed_bits_per_byte(iter(documents)) == {
        "gzip -9": 8 * len(gzip.compress(joined, 9)) / len(joined),
        "xz -9": 8 * len(lzma.compress(joined, preset=9)) / len(joined),
    }
    assert language_model.compressed_bits_per_byte([]) == {"gzip -9": None, "xz -9": None}
