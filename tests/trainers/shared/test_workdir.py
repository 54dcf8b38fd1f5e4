"""Files of a run directory, intact and damaged."""

from fnmatch import fnmatch
from typing import NamedTuple

import keras
import pytest

from tf_sparse_attention.data import ByteTokenizer, SubwordTokenizer
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import workdir
from tf_sparse_attention.trainers.shared.tokenizers import describe

VOCABULARY = ["<pad>_", "<EOS>_", "ab_", *"\\_u;0123456789abc"]
BYTES, SUBWORDS = ({"tokenizer": describe(made)} for made in (ByteTokenizer(), SubwordTokenizer(VOCABULARY)))


def test_a_file_is_no_run_directory(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"`workdir` must be a folder, not a file. Received: workdir=.*file"):
        workdir.open_workdir(tmp_path / "file", create=True)


@pytest.mark.parametrize(
    ("content", "found"),
    [("{", "Expecting"), ("[1]", "a list"), ('{"seed": 0}', "no section"), ("", "Exp")],
)
def test_a_broken_configuration_is_named(content, found, tmp_path):
    workdir.save_config(tmp_path, base.get_config())
    assert workdir.load_config(tmp_path).seed == 0
    (tmp_path / "checksums.json").unlink()
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"`workdir` must hold an intact config.json.*config.json, with {found}"):
        workdir.load_config(tmp_path)


def test_a_configuration_that_was_edited_is_named(tmp_path):
    config = base.get_config()
    for config.seed in (1, 2):  # a later start may have other settings
        workdir.save_config(tmp_path, config)
        assert workdir.load_config(tmp_path).seed == config.seed
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"seed": 2', '"seed": 3'))
    with pytest.raises(ValueError, match=r"`workdir` must hold an intact config.json.*, with content other than"):
        workdir.load_config(tmp_path)


def test_a_replaced_file_never_has_the_checksum_of_other_content(tmp_path, monkeypatch):
    write, left = workdir.write_json, []
    workdir.save_json(tmp_path, "labels.json", [1])

    def look(path, content):
        write(path, content)
        left.append(workdir.read_json(tmp_path, "labels.json", list))

    monkeypatch.setattr(workdir, "write_json", look)
    workdir.save_json(tmp_path, "labels.json", [2])
    assert left == [[1], [2], [2]]


def test_a_truncated_model_is_named(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"`workdir` must be a complete file .*model.keras, which has 16 bytes"):
        workdir.load_model(tmp_path)


def test_a_tokenizer_that_was_edited_is_named(tmp_path):
    workdir.save_state(tmp_path, SUBWORDS)
    path = tmp_path / "task.json"
    assert workdir.load_tokenizer(tmp_path).vocabulary_size > 0
    path.write_text(path.read_text().replace("ab_", "ba_"))
    for read in (workdir.load_tokenizer, lambda folder: workdir.check_state(folder, BYTES)):
        with pytest.raises(ValueError, match=r"`workdir` must hold an intact task.json.*, with content other than"):
            read(tmp_path)
    (tmp_path / "checksums.json").unlink()
    assert workdir.load_tokenizer(tmp_path).vocabulary_size > 0
    path.write_text('{"tokenizer": {"class": "SubwordTokenizer"}}')
    with pytest.raises(ValueError, match=r"`workdir` must hold an intact task.json.*task.json, with no 'config'"):
        workdir.load_tokenizer(tmp_path)


def test_a_run_resumes_with_its_tokenizer_even_if_the_file_is_missing(tmp_path):
    workdir.save_state(tmp_path, BYTES)
    (tmp_path / "task.json").unlink()
    workdir.check_state(tmp_path, BYTES)
    with pytest.raises(ValueError, match=r"`config.data` must match the tokenizer of the checkpoint"):
        workdir.check_state(tmp_path, SUBWORDS)


@pytest.mark.parametrize("content", ['{"name": "books"}', "[]", "{", "\xff"])
def test_a_broken_source_file_is_named(content, tmp_path):
    (tmp_path / "source.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"`workdir` must hold an intact source.json: .*source.json, with "):
        workdir.load_source(tmp_path)


def test_a_model_with_a_changed_byte_is_named(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.save(tmp_path / "model.keras")
    content = (tmp_path / "model.keras").read_bytes()
    at = content.index(b"units")
    (tmp_path / "model.keras").write_bytes(content[:at] + b"U" + content[at + 1 :])
    with pytest.raises(ValueError, match=r"`workdir` must be a readable model file.* a damaged config.json"):
        workdir.load_model(tmp_path)


class Source(NamedTuple):
    name: str
    fingerprint: str


@pytest.mark.parametrize(
    ("source", "variant", "expected"),
    [
        (Source("books", "1"), None, "evaluation-test.json"),
        (Source("books", "1"), "with_full", "evaluation-with_full-test.json"),
        (Source("books", "2"), None, "evaluation-books-????????-test.json"),
        (Source("pg19/0.1.1", "3"), "with_full", "evaluation-pg19-0.1.1-????????-with_full-test.json"),
    ],
)
def test_scores_of_other_data_have_a_separate_file(tmp_path, source, variant, expected):
    workdir.save_source(tmp_path, Source("books", "1"))
    assert fnmatch(workdir.evaluation_path(tmp_path, "test", source, variant), tmp_path / expected)


def test_data_sets_of_equal_names_and_parts_of_a_split_have_separate_files(tmp_path):
    workdir.save_source(tmp_path, Source("books", "1"))
    parts = "test", "test[:1]", "test[1:]", "test[:50%]", "test[50%:]"
    paths = {workdir.evaluation_path(tmp_path, part, Source("books", number)) for part in parts for number in "1234"}
    assert len(paths) == len(parts) * 4


def test_samples_of_other_data_have_a_separate_file(tmp_path):
    workdir.save_source(tmp_path, Source("books", "1"))
    names = [workdir.generated_path(tmp_path, "test", Source("books", number)).name for number in "12"]
    assert names[0] == "generated-test.jsonl" and fnmatch(names[1], "generated-books-????????-test.jsonl")
