"""The evaluation of a trained model, on its own text and on others."""

import json
import shutil

import pytest

from trainers import evaluation, training, workdir
from trainers.compression import compressed_bits_per_byte


@pytest.fixture(scope="module")
def run(make_tiny_config, tmp_path_factory):
    """The folder of a run of two steps; tests add evaluations to it."""
    config = make_tiny_config()
    config.train.update(num_steps=2, evaluate_every=0)
    folder = tmp_path_factory.mktemp("run")
    training.train(config, folder)
    return folder


def changes(**data):
    settings = evaluation.changeable()
    settings.data.update(batch_size=8, sequence_length=128, **data)
    return settings


def test_every_token_of_the_split_is_scored_and_written_down(run, text_folder):
    result = evaluation.evaluate(run, "test")
    texts = [path.read_bytes() for path in sorted((text_folder / "test").glob("*.txt"))]
    assert result["bytes"] == sum(len(text) for text in texts)
    assert result["tokens"] == result["bytes"] + len(texts)
    assert result["words"] == sum(len(text.split()) for text in texts)
    assert result["settings"] == {"batch_size": 2, "sequence_length": 64, "packed": True}
    assert {name: result[name] for name in ("gzip -9", "xz -9")} == compressed_bits_per_byte(texts)
    assert 3 < result["bits_per_byte"] < 9
    assert result["path"] == str(run / "evaluation-test.json")
    assert json.loads((run / "evaluation-test.json").read_text()) == result


def test_windows_may_be_others_than_in_training(run):
    result = evaluation.evaluate(run, "validation", changes())
    assert result["settings"] == {"batch_size": 8, "sequence_length": 128, "packed": True}
    assert result["windows"] == -(-result["tokens"] // 128)
    assert (run / "evaluation-validation.json").exists()


def test_another_text_replaces_all_settings_of_the_first_and_has_a_file_of_its_own(run, tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "poem.md").write_text("a rose is a rose\n" * 400)
    result = evaluation.evaluate(run, "test", changes(path=str(tmp_path), pattern="*.md", data_dir=str(tmp_path)))
    assert result["data"].startswith("text_folder/")
    assert result["path"] == str(run / "evaluation-text_folder-test.json")
    assert result["words"] == 5 * 400


def test_a_part_of_a_split_has_a_file_of_its_own(run):
    assert evaluation.evaluate(run, "test[:1]", changes())["path"] == str(run / "evaluation-test_1_.json")


def test_figures_are_readable(run):
    text = evaluation.as_text(evaluation.evaluate(run, "validation", changes()))
    rows = {row[:22].strip(): row[22:] for row in text.splitlines()}
    result = json.loads((run / "evaluation-validation.json").read_text())
    assert rows["bits per byte"] == f"{result['bits_per_byte']:.4f}"
    assert rows["gzip -9"] == f"{result['gzip -9']:.4f}"
    assert rows["bytes, words, tokens"] == f"{result['bytes']}, {result['words']}, {result['tokens']}"


def test_a_perplexity_beyond_floats_is_said_to_be_so():
    row = {"split": "test", "data": "d", "bytes": 1, "words": 0, "tokens": 2, "bits_per_byte": 1.0, "seconds": 1.0}
    text = evaluation.as_text(row | {"gzip -9": 2.0, "xz -9": 2.0, "perplexity": 3.0, "perplexity_per_word": None})
    assert "perplexity per word   beyond any float" in text


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
    assert (run / "evaluation-tiny_shakespeare-validation.json").exists()


@pytest.fixture
def small_pg19(shared_data, tmp_path):
    """A copy of the PG-19 folder with the first 3000 bytes of each book, less a cut character."""
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
    assert workdir.evaluation_path(run, "test", "pg19").exists()
