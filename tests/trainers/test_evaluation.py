"""Evaluation of a trained model, on its text and on other texts."""

import json
import math
import re
import shutil
import types
from fnmatch import fnmatch

import pytest
from absl import flags

from tests.trainers import task_runs
from tests.trainers.interrupted import stop_evaluation
from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.text_source import official_word_count
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation, overrides, workdir
from tf_sparse_attention.trainers.shared.devices import OneDevice
from tf_sparse_attention.trainers.shared.evaluation import EvaluationRun, Progress, with_overrides
from tf_sparse_attention.trainers.tasks import language_model, registry
from tf_sparse_attention.trainers.tasks.language_model import compressed_bits_per_byte

SETTINGS = {"batch_size": 2, "sequence_length": 64, "use_packing": True, "mask_rate": 0.0, "overlap": 0}


@pytest.fixture(scope="module")
def run(untrained, tmp_path_factory):
    return shutil.copytree(untrained, tmp_path_factory.mktemp("run") / "run")


def changes(**data):
    settings = overrides.overridable_settings()
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
    rows = {row[:22].strip(): row[22:] for row in evaluation.as_text(counted).splitlines()}
    assert rows["bits per byte"] == f"{counted['bits_per_byte']:.4f}"
    assert rows["gzip -9"] == f"{counted['gzip -9']:.4f}"
    assert rows["bytes, words, tokens"] == f"{counted['bytes']}, {counted['words']}, {counted['tokens']}"


def test_overlapping_windows_score_every_token_once_with_more_to_see(run, counted):
    overlapping = evaluation.evaluate(run, "test", changes(use_packing=False, overlap=96))
    assert overlapping["tokens"] == counted["tokens"]
    assert overlapping["windows"] > 3 * counted["windows"]
    assert overlapping["settings"]["overlap"] == 96
    assert overlapping["nats"] != counted["nats"]


def test_another_text_replaces_all_settings_of_the_first_and_has_a_separate_file(run, tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "poem.md").write_text("a rose is a rose\n" * 40)
    result = evaluation.evaluate(run, "test", changes(path=str(tmp_path), pattern="*.md", data_dir=str(tmp_path)))
    assert result["data"].startswith("text_folder/")
    assert fnmatch(result["path"], str(run / f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"))
    assert result["words"] == 5 * 40


@pytest.mark.full
def test_a_part_of_a_split_has_a_separate_file(run):
    paths = [evaluation.evaluate(run, split, changes())["path"] for split in ("test[:1]", "test[1:2]")]
    assert len(set(paths)) == 2 and fnmatch(paths[0], str(run / "evaluation-test_1_-????????.json"))


def test_an_evaluation_offers_only_the_settings_that_it_reads():
    settings = overrides.overridable_settings().to_dict()
    source = {"tfds", "path", "pattern", "text_field", "local_dir", "text_feature", "data_dir"}
    assert set(settings) == {"data", "train", "generate"} and set(settings["generate"]) == {"length"}
    assert set(settings["data"]) == {*source, "batch_size", "sequence_length", "use_packing", "mask_rate", "overlap"}
    execution = {"jit_compile", "steps_per_execution", "num_logical_cpus", "model_parallel"}
    of_tasks = {"generated_targets", "generated_beams", "num_beams", "evaluation_attention"}
    assert set(settings["train"]) == execution | of_tasks


def test_flags_change_the_settings_they_name_and_no_others():
    values = flags.FlagValues()
    read = overrides.define_flags(values)
    values(["evaluate", "--config.data.batch_size=3", "--noconfig.data.use_packing", "--config.data.path=books"])
    expected = overrides.overridable_settings()
    expected.data.update(batch_size=3, use_packing=False, path="books")
    assert read().to_dict() == expected.to_dict()


def test_flags_for_other_settings_and_values_of_another_kind_are_errors_that_name_them():
    for flag, error, message in [
        ("train.evaluation_windows=1", flags.UnrecognizedFlagError, "'config.train.evaluation_windows'"),
        ("optimizer.name=1", flags.UnrecognizedFlagError, "'config.optimizer.name'"),
        ("data.batch_size=many", flags.IllegalFlagValueError, "--config.data.batch_size=many"),
    ]:
        values = flags.FlagValues()
        overrides.define_flags(values)
        with pytest.raises(error, match=re.escape(message)):
            values(["evaluate", f"--config.{flag}"])


def test_overrides_change_a_copy_and_another_text_replaces_all_settings_of_the_source():
    config, wanted = base.get_config(), overrides.overridable_settings()
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
def test_another_text_is_scored_after_that_of_the_training_is_gone(text_folder, tmp_path):
    gone, other = tmp_path / "gone", tmp_path / "other"
    shutil.copytree(text_folder, gone)
    shutil.copytree(text_folder / "test", other / "test")
    config = task_runs.make_language_model_config(path=str(gone), data_dir=str(tmp_path / "data"))
    run = task_runs.write_run(tmp_path / "run", config)
    shutil.rmtree(gone)
    result = evaluation.evaluate(run, "test", changes(path=str(other)))
    name = f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"
    assert fnmatch(result["path"], str(run / name))
    with pytest.raises(ValueError, match=r"`path`.*gone"):
        evaluation.evaluate(run, "test")


def test_an_unknown_split_and_a_folder_without_a_run_are_errors(run, tmp_path):
    with pytest.raises(ValueError, match=r"`split`.*split=exam"):
        evaluation.evaluate(run, "exam")
    with pytest.raises(ValueError, match="`workdir`"):
        evaluation.evaluate(tmp_path)


@pytest.mark.full
def test_data_sets_of_tfds_are_scored_by_their_names_offline(run, shared_data, tmp_path):
    (tmp_path / "books").mkdir()
    shutil.copy(shared_data / "books" / "metadata.csv", tmp_path / "books")
    for split in ("train", "validation", "test"):
        (tmp_path / "books" / split).mkdir()
        for path in (shared_data / "books" / split).glob("*.txt"):
            text = path.read_bytes()[:3000].decode("utf-8", errors="ignore")
            (tmp_path / "books" / split / path.name).write_text(text, encoding="utf-8")
    texts = [path.read_bytes() for path in (tmp_path / "books" / "test").glob("*.txt")]
    where = {"pg19": tmp_path / "books", "tiny_shakespeare": shared_data / "tinyshakespeare"}
    for name, version, counted, count in [
        ("pg19", "0.1.1", "words", sum(len(text.split()) for text in texts)),
        ("tiny_shakespeare", "1.0.0", "bytes", 55_770),
    ]:
        source = {"tfds": name, "local_dir": str(where[name]), "data_dir": str(tmp_path)}
        result = evaluation.evaluate(run, "test", changes(**source))
        assert (result["data"], result[counted]) == (f"{name}/{version}", count)
        assert fnmatch(result["path"], str(run / f"evaluation-{name}-{version}-????????-test.json"))


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


def test_progress_is_a_line_now_and_then_in_a_log(monkeypatch, caplog):
    monkeypatch.setattr("tf_sparse_attention.trainers.shared.evaluation.SECONDS_BETWEEN_LINES", -1)
    caplog.set_level("INFO", logger="absl")
    progress = Progress(10)
    progress.begin(4)
    progress.on_predict_batch_end(1)
    assert "batch 6/10, 0:00 left" in caplog.text
