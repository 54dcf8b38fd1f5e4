"""Evaluation of a trained model, on its text and on other texts."""

import json
import shutil
from fnmatch import fnmatch

import pytest
from absl import flags

from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.text_source import official_word_count
from tf_sparse_attention.trainers.shared import evaluation, overrides, training
from tf_sparse_attention.trainers.shared.evaluation import Progress, ResumableSums
from tf_sparse_attention.trainers.tasks import language_model
from tf_sparse_attention.trainers.tasks.language_model import compressed_bits_per_byte


@pytest.fixture(scope="module")
def run(make_plain_config, tmp_path_factory):
    """A run directory to which tests add evaluations."""
    folder = tmp_path_factory.mktemp("run")
    training.train(make_plain_config(), folder)
    return folder


def changes(**data):
    settings = overrides.overridable_settings()
    settings.data.update(batch_size=8, sequence_length=128, **data)
    return settings


def test_every_token_of_the_split_is_scored_and_written_down(run, text_folder):
    result = evaluation.evaluate(run, "test")
    texts = sorted((path.read_bytes() for path in (text_folder / "test").glob("*.txt")), key=content_digest)
    assert result["bytes"] == sum(len(text) for text in texts)
    assert result["tokens"] == result["bytes"] + len(texts)
    assert result["words"] == sum(len(text.split()) for text in texts)
    assert result["settings"] == {
        "batch_size": 2,
        "sequence_length": 64,
        "use_packing": True,
        "mask_rate": 0.0,
        "overlap": 0,
    }
    assert {name: result[name] for name in ("gzip -9", "xz -9")} == compressed_bits_per_byte(texts)
    assert 3 < result["bits_per_byte"] < 9
    assert result["path"] == str(run / "evaluation-test.json")
    assert json.loads((run / "evaluation-test.json").read_text()) == result


def test_windows_may_be_others_than_in_training(run):
    result = evaluation.evaluate(run, "validation", changes())
    assert result["settings"] == {
        "batch_size": 8,
        "sequence_length": 128,
        "use_packing": True,
        "mask_rate": 0.0,
        "overlap": 0,
    }
    assert result["windows"] == -(-result["tokens"] // 128)
    assert (run / "evaluation-validation.json").exists()


def test_another_text_replaces_all_settings_of_the_first_and_has_a_file_of_its_own(run, tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "poem.md").write_text("a rose is a rose\n" * 400)
    result = evaluation.evaluate(run, "test", changes(path=str(tmp_path), pattern="*.md", data_dir=str(tmp_path)))
    assert result["data"].startswith("text_folder/")
    assert fnmatch(result["path"], str(run / f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"))
    assert result["words"] == 5 * 400


def test_a_part_of_a_split_has_a_file_of_its_own(run):
    paths = [evaluation.evaluate(run, split, changes())["path"] for split in ("test[:1]", "test[1:2]")]
    assert len(set(paths)) == 2 and fnmatch(paths[0], str(run / "evaluation-test_1_-????????.json"))


def test_figures_are_readable(run):
    text = evaluation.as_text(evaluation.evaluate(run, "validation", changes()))
    rows = {row[:22].strip(): row[22:] for row in text.splitlines()}
    result = json.loads((run / "evaluation-validation.json").read_text())
    assert rows["bits per byte"] == f"{result['bits_per_byte']:.4f}"
    assert rows["gzip -9"] == f"{result['gzip -9']:.4f}"
    assert rows["bytes, words, tokens"] == f"{result['bytes']}, {result['words']}, {result['tokens']}"


@pytest.mark.parametrize(("num_words", "said"), [(1, "too large for a float"), (0, "no words")])
def test_it_is_said_why_there_is_no_perplexity_per_word(num_words, said):
    row = {"task": "language_model", "split": "test", "data": "d", "bytes": 1, "tokens": 2, "bits_per_byte": 1.0}
    row |= {"gzip -9": 2.0, "xz -9": 2.0, "perplexity": 3.0, "words": num_words, "perplexity_per_word": None}
    row |= {"words_are": "counted", "seconds": 1.0}
    row["settings"] = {"mask_rate": 0.0}
    assert f"perplexity per word   {said}\n" in evaluation.as_text(row)


def test_what_an_evaluation_does_not_read_is_not_offered():
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


@pytest.mark.parametrize("name", ["train.dtype", "train.evaluation_windows", "data.train_split", "optimizer.name"])
def test_a_flag_for_another_setting_is_an_error_that_names_it(name):
    values = flags.FlagValues()
    overrides.define_flags(values)
    with pytest.raises(flags.UnrecognizedFlagError, match=rf"Unknown command line flag 'config\.{name}'"):
        values(["evaluate", f"--config.{name}=1"])


def test_a_flag_with_a_value_of_another_kind_is_an_error():
    values = flags.FlagValues()
    overrides.define_flags(values)
    with pytest.raises(flags.IllegalFlagValueError, match=r"--config\.data\.batch_size=many"):
        values(["evaluate", "--config.data.batch_size=many"])


@pytest.mark.full
def test_another_text_is_scored_after_that_of_the_training_is_gone(make_plain_config, text_folder, tmp_path):
    gone, other = tmp_path / "gone", tmp_path / "other"
    shutil.copytree(text_folder, gone)
    shutil.copytree(text_folder / "test", other / "test")
    config = make_plain_config()
    config.data.update(path=str(gone), data_dir=str(tmp_path / "data"))
    training.train(config, tmp_path / "run")
    shutil.rmtree(gone)
    result = evaluation.evaluate(tmp_path / "run", "test", changes(path=str(other)))
    name = f"evaluation-{result['data'].replace('/', '-')}-????????-test.json"
    assert fnmatch(result["path"], str(tmp_path / "run" / name))
    with pytest.raises(ValueError, match=r"`path` must be an existing folder or file\. Received: path=.*gone"):
        evaluation.evaluate(tmp_path / "run", "test")


def test_an_unknown_split_is_an_error(run):
    with pytest.raises(ValueError, match=r"`split` must be one of .* Received: split=exam"):
        evaluation.evaluate(run, "exam")


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"`workdir` must hold config.json"):
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


def test_pg19_is_scored_by_its_name_offline(run, small_pg19, tmp_path):
    result = evaluation.evaluate(run, "test", changes(tfds="pg19", local_dir=str(small_pg19), data_dir=str(tmp_path)))
    texts = [path.read_bytes() for path in (small_pg19 / "test").glob("*.txt")]
    assert result["data"] == "pg19/0.1.1"
    assert result["words"] == sum(len(text.split()) for text in texts)
    assert result["tokens"] == result["bytes"] + len(texts)
    assert fnmatch(result["path"], str(run / "evaluation-pg19-0.1.1-????????-test.json"))


def test_overlapping_windows_score_every_token_once_with_more_to_see(run):
    apart = evaluation.evaluate(run, "validation", changes(use_packing=False))
    overlapping = evaluation.evaluate(run, "validation", changes(use_packing=False, overlap=96))
    assert overlapping["tokens"] == apart["tokens"]
    assert overlapping["windows"] > 3 * apart["windows"]
    assert overlapping["settings"]["overlap"] == 96
    assert overlapping["nats"] != apart["nats"]


class Killed(Exception):
    """Replaces a signal that ends the process."""


def test_an_evaluation_that_is_killed_goes_on_to_the_same_figures(run, monkeypatch, caplog):
    settings = changes()
    settings.data.update(batch_size=2, sequence_length=32)
    monkeypatch.setattr(evaluation, "BATCHES_PER_SAVE", 3)
    whole = evaluation.evaluate(run, "validation", settings)
    partial = run / "evaluation-validation.partial.json"
    assert not partial.exists()
    predicted = []

    def dies(self, batches, steps, **options):
        predicted.append(steps)
        if len(predicted) == 3:
            raise Killed
        return predict(self, batches, steps=steps, **options)

    predict = evaluation.Scorer.predict
    monkeypatch.setattr(evaluation.Scorer, "predict", dies)
    with pytest.raises(Killed):
        evaluation.evaluate(run, "validation", settings)
    assert json.loads(partial.read_text())["batches"] == 6
    resumed = evaluation.evaluate(run, "validation", settings)
    assert not partial.exists()
    batches = -(-whole["windows"] // 2)
    assert sum(predicted[3:]) == batches - 6
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


def test_a_complete_split_is_divided_by_its_official_words(run, monkeypatch):
    counted = evaluation.evaluate(run, "validation", changes())
    assert counted["words_are"] == "counted"
    monkeypatch.setattr(language_model, "official_word_count", lambda name, split, num_documents: 10 * counted["words"])
    official = evaluation.evaluate(run, "validation", changes())
    assert (official["words_are"], official["words"]) == ("official", 10 * counted["words"])
    assert official["perplexity_per_word"] == pytest.approx(counted["perplexity_per_word"] ** 0.1)
    assert "words                 official count" in evaluation.as_text(official)
    assert json.loads((run / "evaluation-validation.json").read_text())["words_are"] == "official"


def test_official_counts_are_those_of_pg19_and_of_complete_splits_alone():
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
