"""Evaluation of a trained model, on its text and on other texts, and the scores of a language model."""

import gzip
import json
import lzma
import math
import types
from fnmatch import fnmatch

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tests.trainers.task_runs import make_language_model_config, stop_evaluation
from tf_sparse_attention import audit
from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.text_source import official_word_count
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation, workdir
from tf_sparse_attention.trainers.shared.devices import OneDevice, choose_devices
from tf_sparse_attention.trainers.shared.evaluation import EvaluationRun, with_overrides
from tf_sparse_attention.trainers.tasks import language_model, registry
from tf_sparse_attention.trainers.tasks.language_model import compressed_bits_per_byte

SETTINGS = {"batch_size": 2, "sequence_length": 64, "use_packing": True, "mask_rate": 0.0, "overlap": 0}


def changes(**data):
    settings = base.overridable_settings()
    settings.data.update({"batch_size": 2, "sequence_length": 128, **data})
    return settings


@pytest.fixture(scope="module")
def counted(run):
    """Result of an evaluation with other windows than in training."""
    return evaluation.evaluate(run, "test", changes(use_packing=False))


def test_every_token_of_the_split_is_scored_and_written_to_a_file(run, counted, text_folder):
    texts = sorted((path.read_bytes() for path in (text_folder / "test").glob("*.txt")), key=content_digest)
    assert counted["bytes"] == sum(len(text) for text in texts)
    assert counted["tokens"] == counted["bytes"] + len(texts)
    assert counted["words"] == sum(len(text.split()) for text in texts)
    assert counted["windows"] == -(-counted["tokens"] // 128)
    assert counted["settings"] == {**SETTINGS, "sequence_length": 128, "use_packing": False}
    assert {name: counted[name] for name in ("gzip -9", "xz -9")} == compressed_bits_per_byte(texts)
    assert counted["bits_per_byte"] == pytest.approx(counted["nats"] / math.log(2) / counted["bytes"])
    assert counted["path"] == str(run / "evaluation-test.json")
    assert json.loads((run / "evaluation-test.json").read_text()) == counted


@pytest.mark.full
def test_overlapping_windows_score_every_token_once_with_more_to_see(run, counted):
    overlapping = evaluation.evaluate(run, "test", changes(use_packing=False, overlap=96))
    assert overlapping["tokens"] == counted["tokens"]
    assert overlapping["windows"] > 3 * counted["windows"]
    assert overlapping["settings"]["overlap"] == 96
    assert overlapping["nats"] != counted["nats"]


@pytest.mark.full
def test_a_part_of_a_split_has_a_separate_file(run):
    paths = [evaluation.evaluate(run, split, changes())["path"] for split in ("test[:1]", "test[1:2]")]
    assert len(set(paths)) == 2 and fnmatch(paths[0], str(run / "evaluation-test_1_-????????.json"))


@pytest.mark.full
def test_flags_change_the_settings_they_name_and_no_others(run_python):
    flags = ["--config.data.batch_size=3", "--noconfig.data.use_packing", "--config.data.path=books"]
    code = (
        "from absl import flags\nfrom tf_sparse_attention.trainers import evaluate\n"
        f"flags.FLAGS(['evaluate', *{flags}])\nprint(evaluate.read_changes().to_json())"
    )
    expected = base.overridable_settings()
    expected.data.update(batch_size=3, use_packing=False, path="books")
    assert json.loads(run_python(code)) == expected.to_dict()


def test_overrides_change_a_copy_and_another_text_replaces_all_settings_of_the_source():
    config, wanted = base.get_config(), base.overridable_settings()
    config.data.update(tfds="pg19", local_dir="books", data_dir="data", source_field="en")
    before = config.to_dict()
    assert with_overrides(config).to_dict() == before
    wanted.data.update(path="poems", batch_size=3)
    wanted.train.jit_compile = False
    found = with_overrides(config, wanted)
    assert config.to_dict() == before
    changed = {"tfds": None, "local_dir": None, "path": "poems", "batch_size": 3}
    assert found.data.to_dict() == {**before["data"], **changed}
    assert found.train.to_dict() == {**before["train"], "jit_compile": False}


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_the_model_of_a_run_is_audited(run, capsys):
    assert audit.main([str(run), "--length=9"]) == 0
    assert capsys.readouterr().out.endswith("\ncausal\n")


@pytest.mark.full
def test_a_killed_evaluation_resumes_to_the_same_scores(run, counted, monkeypatch):
    partial = run / "evaluation-test.partial.json"
    predicted = stop_evaluation(monkeypatch, chunk=1, call=3)
    with pytest.raises(KeyboardInterrupt):
        evaluation.evaluate(run, "test", changes(use_packing=False))
    assert json.loads(partial.read_text())["batches"] == 2
    resumed = evaluation.evaluate(run, "test", changes(use_packing=False))
    assert not partial.exists()
    assert sum(predicted[3:]) == -(-counted["windows"] // 2) - 2
    same = ("nats", "tokens", "words", "bits_per_byte", "perplexity")
    assert {name: resumed[name] for name in same} == {name: counted[name] for name in same}


OWN, OTHER = (types.SimpleNamespace(name=name, fingerprint=f"{name} 1") for name in ("books", "poems/long"))


def make_run(folder, config, source, variant=None):
    task = types.SimpleNamespace(source=source, config=config)
    validation = types.SimpleNamespace(task=task, split="test", variant=variant)
    return EvaluationRun(folder, validation, OneDevice())


def test_scores_of_other_data_have_separate_files_and_partial_sums_are_deleted(tmp_path):
    workdir.save_source(tmp_path, OWN)
    runs = [make_run(tmp_path, base.get_config(), source) for source in (OWN, OTHER)]
    runs.append(make_run(tmp_path, base.get_config(), OWN, "with_lsh"))
    for run, pattern in zip(runs, ("test", "poems-long-????????-test", "with_lsh-test"), strict=True):
        sums = [run.resumable_sums(), run.resumable_sums("beams", 8)]
        for place, partial in enumerate(sums):
            partial.save(1 + place, {"nats": 1.5})
        assert len(list(tmp_path.glob("*.partial.json"))) == 2
        found = run.write({"nats": 3.0})
        assert found == {"nats": 3.0, "path": str(run.path)} and json.loads(run.path.read_text()) == found
        assert fnmatch(run.path.name, f"evaluation-{pattern}.json") and not list(tmp_path.glob("*.partial.json"))
    assert len({run.path for run in runs}) == 3


def test_partial_sums_are_resumed_only_with_the_same_settings(tmp_path):
    config = base.get_config()
    workdir.save_source(tmp_path, OWN)
    assert make_run(tmp_path, config, OWN).resumable_sums("beams", 8).load() == (0, None)
    make_run(tmp_path, config, OWN).resumable_sums("beams", 8).save(2, {"nats": 1.5})
    assert make_run(tmp_path, config, OWN).resumable_sums("beams", 8).load() == (2, {"nats": 1.5})
    assert make_run(tmp_path, config, OWN).resumable_sums("beams", 4).load() == (0, None)
    (partial,) = tmp_path.glob("*.partial.json")
    for damaged in ("[]", "{}", "{"):
        partial.write_text(damaged)
        assert make_run(tmp_path, config, OWN).resumable_sums("beams", 8).load() == (0, None)
    config.data.sequence_length = 7
    assert make_run(tmp_path, config, OWN).resumable_sums("beams", 8).load() == (0, None)


def test_a_complete_split_is_divided_by_its_official_words(run, counted, monkeypatch):
    assert counted["words_are"] == "counted"
    assert counted["perplexity_per_word"] == pytest.approx(math.exp(counted["nats"] / counted["words"]))
    monkeypatch.setattr(language_model, "official_word_count", lambda name, split, num_documents: 10 * counted["words"])
    task = registry.load_task(run)
    validation = task.validation(task, workdir.load_model(run), "test")
    official = {**counted, **validation.details(None, counted), **validation.metrics(counted)}
    assert (official["words_are"], official["words"]) == ("official", 10 * counted["words"])
    assert official["perplexity_per_word"] == pytest.approx(counted["perplexity_per_word"] ** 0.1)
    assert "words                 official count" in evaluation.as_text(official)
    for *split, count in [
        ("pg19/0.1.1", "test", 100, 6_966_499),
        ("pg19/0.1.1", "validation", 50, 3_007_061),
        ("pg19/0.1.1", "train", 28_602, 1_973_136_207),
        ("pg19/0.1.1", "test", 99, None),
        ("pg19/0.1.1", "test[:100]", 100, None),
        ("pg20/0.1.1", "test", 100, None),
    ]:
        assert official_word_count(*split) == count


@pytest.mark.parametrize(("num_replicas", "batch_size", "limit"), first([(1, 2, 3), (2, 4, None)], 1))
def test_nats_equal_those_of_single_windows(text_folder, data_dir, num_replicas, batch_size, limit):
    config = make_language_model_config(path=str(text_folder), data_dir=str(data_dir))
    config.data.update(batch_size=batch_size, sequence_length=100)
    config.train.num_logical_cpus = num_replicas
    task, devices, nats = language_model.Task(config), choose_devices(config), 0.0
    with devices.scope():
        validation = language_model.Validation(task, task.make_model(), "test", limit)
        evaluator = evaluation.Evaluator(validation, devices, devices.execution(False, 1))
        totals, tokens = evaluator.totals(validation.batches()[""]), validation.store.tokens
        all_windows = -(-len(tokens) // 100)
        num_windows = limit or all_windows
        for begin in (window * all_windows // num_windows * 100 for window in range(num_windows)):
            inputs, targets, _ = tsa.data.pack_windows(np.asarray(tokens[begin : begin + 100], "int32")[None])
            logits = np.float64(validation.model(inputs))[0]
            nats += (np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), targets[0]]).sum()
    assert totals["nats"] == pytest.approx(nats, rel=1e-6)
    assert totals["tokens"] == min(100 * num_windows, len(tokens))


def metrics_for(nats, num_tokens, num_bytes, num_words):
    store = types.SimpleNamespace(num_tokens=num_tokens, num_bytes=num_bytes, num_words=num_words, num_documents=1)
    task = types.SimpleNamespace(source=types.SimpleNamespace(name="text"))
    validation = types.SimpleNamespace(store=store, task=task, split="test")
    validation._counts = lambda tokens: language_model.Validation._counts(validation, tokens)
    return language_model.Validation.metrics(validation, {"nats": nats, "tokens": num_tokens})


def test_scores_of_a_text_worked_by_hand():
    # Eight tokens of seven bytes and two words, each token predicted with probability 1/4.
    metrics = metrics_for(8 * math.log(4), num_tokens=8, num_bytes=7, num_words=2)
    names = "loss", "bits_per_byte", "perplexity", "perplexity_per_word"
    assert [metrics[name] for name in names] == pytest.approx([math.log(4), 16 / 7, 4, 4**4])
    certain = metrics_for(0.0, num_tokens=8, num_bytes=7, num_words=2)
    assert [certain[name] for name in names] == [0.0, 0.0, 1.0, 1.0]


def test_a_perplexity_per_word_without_words_or_too_large_for_a_float_is_none():
    for nats, num_words in ((1000.0, 0), (1000.0, 1), (0.0, 0)):
        assert metrics_for(nats, num_tokens=500, num_bytes=500, num_words=num_words)["perplexity_per_word"] is None


def test_gzip_and_xz_compress_the_documents_as_one_stream():
    generator = np.random.default_rng(0)
    documents = [bytes(generator.integers(97, 105, 500, dtype=np.uint8)) for _ in range(4)]
    joined = b"".join(documents)
    assert language_model.compressed_bits_per_byte(iter(documents)) == {
        "gzip -9": 8 * len(gzip.compress(joined, 9)) / len(joined),
        "xz -9": 8 * len(lzma.compress(joined, preset=9)) / len(joined),
    }
    assert language_model.compressed_bits_per_byte([]) == {"gzip -9": None, "xz -9": None}
