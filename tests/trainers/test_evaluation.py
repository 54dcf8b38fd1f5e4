"""Evaluation of a trained model, on its text and on other texts."""

import json
import re
import shutil
from fnmatch import fnmatch

import pytest
from absl import flags

from tests.trainers import untrained_run
from tests.trainers.eager import EAGER
from tests.trainers.interrupted import stop_evaluation
from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.text_source import official_word_count
from tf_sparse_attention.trainers.shared import evaluation, overrides
from tf_sparse_attention.trainers.shared.evaluation import Progress, ResumableSums
from tf_sparse_attention.trainers.tasks import language_model
from tf_sparse_attention.trainers.tasks.language_model import compressed_bits_per_byte

pytestmark = EAGER

SETTINGS = {"batch_size": 2, "sequence_length": 64, "use_packing": True, "mask_rate": 0.0, "overlap": 0}


@pytest.fixture(scope="module")
def run(text_folder, data_dir, tmp_path_factory):
    """A run directory with an untrained model, to which tests add evaluations."""
    return untrained_run.write(tmp_path_factory.mktemp("run"), path=str(text_folder), data_dir=str(data_dir))


def changes(**data):
    settings = overrides.overridable_settings()
    settings.data.update(batch_size=8, sequence_length=128, **data)
    return settings


@pytest.fixture(scope="module")
def of_test_split(run):
    """Result of an evaluation with the settings of the run."""
    return evaluation.evaluate(run, "test")


def test_every_token_of_the_split_is_scored_and_written_to_a_file(run, of_test_split, text_folder):
    result = of_test_split
    texts = sorted((path.read_bytes() for path in (text_folder / "test").glob("*.txt")), key=content_digest)
    assert result["bytes"] == sum(len(text) for text in texts)
    assert result["tokens"] == result["bytes"] + len(texts)
    assert result["words"] == sum(len(text.split()) for text in texts)
    assert result["settings"] == SETTINGS
    assert {name: result[name] for name in ("gzip -9", "xz -9")} == compressed_bits_per_byte(texts)
    assert 3 < result["bits_per_byte"] < 9
    assert result["path"] == str(run / "evaluation-test.json")
    assert json.loads((run / "evaluation-test.json").read_text()) == result


@pytest.fixture(scope="module")
def counted(run):
    """Result of an evaluation with other windows than in training."""
    return evaluation.evaluate(run, "validation", changes())


def test_windows_can_differ_from_those_of_training_and_the_scores_are_readable(run, counted):
    assert counted["settings"] == {**SETTINGS, "batch_size": 8, "sequence_length": 128}
    assert counted["windows"] == -(-counted["tokens"] // 128)
    assert counted["path"] == str(run / "evaluation-validation.json")
    rows = {row[:22].strip(): row[22:] for row in evaluation.as_text(counted).splitlines()}
    assert rows["bits per byte"] == f"{counted['bits_per_byte']:.4f}"
    assert rows["gzip -9"] == f"{counted['gzip -9']:.4f}"
    assert rows["bytes, words, tokens"] == f"{counted['bytes']}, {counted['words']}, {counted['tokens']}"


def test_another_text_replaces_all_settings_of_the_first_and_has_a_separate_file(run, tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "poem.md").write_text("a rose is a rose\n" * 400)
    result = evaluation.evaluate(run, "test", changes(path=str(tmp_path), pattern="*.md", data_dir=str(tmp_path)))
    assert result["data"].startswith("text_folder/")
    assert fnmatch(result["path"], str(run / f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"))
    assert result["words"] == 5 * 400


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
        ("train.dtype=1", flags.UnrecognizedFlagError, "'config.train.dtype'"),
        ("train.evaluation_windows=1", flags.UnrecognizedFlagError, "'config.train.evaluation_windows'"),
        ("data.train_split=1", flags.UnrecognizedFlagError, "'config.data.train_split'"),
        ("optimizer.name=1", flags.UnrecognizedFlagError, "'config.optimizer.name'"),
        ("data.batch_size=many", flags.IllegalFlagValueError, "--config.data.batch_size=many"),
    ]:
        values = flags.FlagValues()
        overrides.define_flags(values)
        with pytest.raises(error, match=re.escape(message)):
            values(["evaluate", f"--config.{flag}"])


@pytest.mark.full
def test_another_text_is_scored_after_that_of_the_training_is_gone(text_folder, tmp_path):
    gone, other = tmp_path / "gone", tmp_path / "other"
    shutil.copytree(text_folder, gone)
    shutil.copytree(text_folder / "test", other / "test")
    run = untrained_run.write(tmp_path / "run", path=str(gone), data_dir=str(tmp_path / "data"))
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


def test_tiny_shakespeare_is_scored_by_its_name_offline(run, shared_data, tmp_path):
    where = {"local_dir": str(shared_data / "tinyshakespeare"), "data_dir": str(tmp_path)}
    result = evaluation.evaluate(run, "validation", changes(tfds="tiny_shakespeare", **where))
    assert result["data"] == "tiny_shakespeare/1.0.0"
    assert result["bytes"] == 55_770
    assert fnmatch(result["path"], str(run / "evaluation-tiny_shakespeare-1.0.0-????????-validation.json"))


@pytest.fixture
def small_pg19(shared_data, tmp_path):
    """A copy of the PG-19 folder with the first 3000 bytes of each book, without incomplete characters."""
    folder = tmp_path / "books"
    for split in ("train", "validation", "test"):
        (folder / split).mkdir(parents=True)
        for path in (shared_data / "books" / split).glob("*.txt"):
            text = path.read_bytes()[:3000].decode("utf-8", errors="ignore")
            (folder / split / path.name).write_text(text, encoding="utf-8")
    shutil.copy(shared_data / "books" / "metadata.csv", folder)
    return folder


@pytest.mark.full
def test_pg19_is_scored_by_its_name_offline(run, small_pg19, tmp_path):
    result = evaluation.evaluate(run, "test", changes(tfds="pg19", local_dir=str(small_pg19), data_dir=str(tmp_path)))
    texts = [path.read_bytes() for path in (small_pg19 / "test").glob("*.txt")]
    assert result["data"] == "pg19/0.1.1"
    assert result["words"] == sum(len(text.split()) for text in texts)
    assert result["tokens"] == result["bytes"] + len(texts)
    assert fnmatch(result["path"], str(run / "evaluation-pg19-0.1.1-????????-test.json"))


def test_overlapping_windows_score_every_token_once_with_more_to_see(run):
    separate = evaluation.evaluate(run, "validation", changes(use_packing=False))
    overlapping = evaluation.evaluate(run, "validation", changes(use_packing=False, overlap=96))
    assert overlapping["tokens"] == separate["tokens"]
    assert overlapping["windows"] > 3 * separate["windows"]
    assert overlapping["settings"]["overlap"] == 96
    assert overlapping["nats"] != separate["nats"]


def test_a_killed_evaluation_resumes_to_the_same_scores(run, monkeypatch):
    settings = changes()
    settings.data.update(batch_size=2, sequence_length=32)
    partial = run / "evaluation-validation.partial.json"
    with monkeypatch.context() as patched:
        predicted = stop_evaluation(patched, chunk=3, call=3)
        with pytest.raises(KeyboardInterrupt):
            evaluation.evaluate(run, "validation", settings)
        assert json.loads(partial.read_text())["batches"] == 6
        resumed = evaluation.evaluate(run, "validation", settings)
    assert not partial.exists()
    whole = evaluation.evaluate(run, "validation", settings)
    assert sum(predicted[3:]) == -(-whole["windows"] // 2) - 6
    same = ("nats", "tokens", "words", "bits_per_byte", "perplexity")
    assert {name: resumed[name] for name in same} == {name: whole[name] for name in same}


def test_sums_of_other_settings_or_of_nothing_are_not_gone_on_with(tmp_path):
    partial = ResumableSums(tmp_path / "sums.json", {"windows": (1, 2)})
    assert partial.load() == (0, None)
    partial.save(4, {"nats": 1.5})
    assert ResumableSums(tmp_path / "sums.json", {"windows": (1, 2)}).load() == (4, {"nats": 1.5})
    assert ResumableSums(tmp_path / "sums.json", {"windows": (1, 3)}).load() == (0, None)
    (tmp_path / "sums.json").write_text("{")
    assert partial.load() == (0, None)


def test_a_complete_split_is_divided_by_its_official_words(run, counted, monkeypatch):
    assert counted["words_are"] == "counted"
    monkeypatch.setattr(language_model, "official_word_count", lambda name, split, num_documents: 10 * counted["words"])
    official = evaluation.evaluate(run, "validation", changes())
    assert (official["words_are"], official["words"]) == ("official", 10 * counted["words"])
    assert official["perplexity_per_word"] == pytest.approx(counted["perplexity_per_word"] ** 0.1)
    assert "words                 official count" in evaluation.as_text(official)
    assert json.loads((run / "evaluation-validation.json").read_text())["words_are"] == "official"


def test_only_complete_splits_of_pg19_have_official_counts():
    assert official_word_count("pg19/0.1.1", "test", 100) == 6_966_499
    assert official_word_count("pg19/0.1.1", "validation", 50) == 3_007_061
    assert official_word_count("pg19/0.1.1", "train", 28_602) == 1_973_136_207
    for other in (("pg19/0.1.1", "test", 99), ("pg19/0.1.1", "test[:100]", 100), ("pg20/0.1.1", "test", 100)):
        assert official_word_count(*other) is None


def test_progress_is_a_line_now_and_then_in_a_log(monkeypatch, caplog):
    monkeypatch.setattr("tf_sparse_attention.trainers.shared.evaluation.SECONDS_BETWEEN_LINES", -1)
    caplog.set_level("INFO", logger="absl")
    progress = Progress(10)
    progress.begin(4)
    progress.on_predict_batch_end(1)
    assert "batch 6/10, 0:00 left" in caplog.text
