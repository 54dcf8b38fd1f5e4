"""Translation by the trainer: trained, resumed bit for bit, scored, generated, and what is refused."""

import json
import signal

import numpy as np
import pytest

from tests.trainers.interrupted import SignalAt, arrays_of
from trainers.configs import translate_documents
from trainers.shared import callbacks, evaluation, exporting, sample_sources, sampling, training, workdir
from trainers.tasks import registry

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of made-up pairs, one of which is too long."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(24):
        words = random.choice(list(WORDS), 60 if number == 3 else random.integers(3, 9))
        split = "train" if number < 16 else "validation" if number < 20 else "test"
        lines.append({"de": " ".join(words), "en": " ".join(WORDS[word] for word in words), "split": split})
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def make_config(path, data_dir):
    def make(variant="local"):
        config = translate_documents.get_config(variant)
        config.data.update(path=str(path), data_dir=str(data_dir), source_field="de", target_field="en")
        config.data.update(tokenizer="bytes", sequence_length=64, batch_size=4)
        config.model.update(num_layers=1, hidden_dim=16, intermediate_dim=16, num_local_layers=0)
        for name in ("attention", "encoder_attention", "cross_attention"):
            parts = [dict(part) for part in config.model[name]]
            config.model[name] = [{**part, "num_heads": 1, "key_dim": 8} for part in parts]
        config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2)
        config.train.update(deterministic=False, jit_compile=False)
        config.generate.length = 5
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, training.train(make_config(), folder)


@pytest.mark.full
def test_a_run_that_was_stopped_ends_as_one_that_was_not(make_config, tmp_path, monkeypatch):
    config = make_config("mixed")
    config.data.update(sequence_length=512, batch_size=1)  # batches of several lengths
    config.train.update(num_steps=7, evaluate_every=0)
    folders = tmp_path / "whole", tmp_path / "stopped"
    training.train(config, folders[0])
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopOnSignal", SignalAt)
        assert training.train(config, folders[1]).signal == signal.SIGTERM
    training.train(config, folders[1])
    assert arrays_of(folders[0], 7) == arrays_of(folders[1], 7)


def test_validation_is_written_with_and_without_the_source(finished):
    rows = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "validation/loss" in row]
    assert row["validation/without_source/loss"] > 0 and row["validation/bits_per_byte"] > 0


def test_every_target_is_scored_once(finished, path):
    scores = registry.load_task(finished[0]).evaluate(finished[0], "test")
    targets = [json.loads(line)["en"] for line in path.read_text().splitlines()][20:]
    assert scores["bytes"] == sum(map(len, targets)) and scores["tokens"] == scores["bytes"] + len(targets)
    assert (scores["pairs"], scores["left_out"]) == (4, 0)
    written = json.loads((finished[0] / "evaluation-test.json").read_text())
    assert written == scores and not list(finished[0].glob("*.partial.json"))
    assert "without the source" in registry.load_task(finished[0]).as_text(scores)
    train = registry.load_task(finished[0]).evaluate(finished[0], "train")
    assert (train["pairs"], train["left_out"]) == (15, 1)


@pytest.mark.full
def test_a_prompt_is_the_source_and_the_sample_its_translation(finished, tmp_path):
    (sample,) = sampling.generate(sample_sources.from_run(finished[0]), b"eins zwei", length=5, temperature=0.0)
    model, tokenizer = workdir.load_model(finished[0]), workdir.load_tokenizer(finished[0])
    source = np.append(tokenizer.tokenize("eins zwei"), 1)
    assert sample["text"] == model.generate([source], 5, tokenizer=tokenizer)[0] and sample["prompt"] == "eins zwei"


def test_what_a_translation_lacks_or_does_not_have_is_refused(finished, make_config, tmp_path):
    for section, name, value, message in [
        ("data", "source_field", None, r"`config\.data\.source_field` must be given for task=translate"),
        ("model", "cross_attention", [], r"`config\.model\.cross_attention` must be given for task=translate"),
        ("data", "mask_rate", 0.1, r"`config\.data\.mask_rate` must be unset for task=translate"),
        ("data", "target_field", "fr", r"`fields` must be those of some lines of pairs\.jsonl"),
    ]:
        config = make_config()
        config[section][name] = value
        with pytest.raises(ValueError, match=message):
            training.train(config, tmp_path / name)
    config = make_config()
    config.task = "translation"
    with pytest.raises(
        ValueError, match=r"`config\.task` must be one of language_model, speech, translate\. Received: task=tr"
    ):
        training.train(config, tmp_path / "task")
    with pytest.raises(ValueError, match=r"`workdir` must be the run of a language model here\. Received: one of the"):
        exporting.export(finished[0])
    assert evaluation.number(None) == "beyond any float"
