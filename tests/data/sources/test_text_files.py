"""A folder of texts as a data set: its splits, its names and its errors."""

import dataclasses
import gzip
import pickle

import pytest

from tf_sparse_attention.data import open_source
from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    assign_split,
    content_digest,
    files_by_split,
    fingerprint_files,
    list_text_files,
)
from tf_sparse_attention.data.sources.text_files import TextFolder, TextFolderConfig
from tf_sparse_attention.data.sources.tfds_preparation import prepare


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "my texts"
    path.mkdir()
    for number in range(200):
        (path / f"{number}.txt").write_text(f"text {number}")
    return path


def written(path, *texts):
    path.mkdir()
    for number, text in enumerate(texts):
        (path / f"{number}.txt").write_bytes(text)
    return list(texts)


def everything(found):
    return [text for texts in found.values() for text in texts]


def documents(path, data_dir, **arguments):
    source = open_source(path=path, data_dir=data_dir, **arguments)
    return {split: sorted(source.documents(split)) for split in source.splits}


def test_files_go_to_the_splits_of_their_content(folder, tmp_path):
    texts = [f"text {number}".encode() for number in range(200)]
    found = documents(folder, tmp_path)
    assert set(found) == {"train", "validation", "test"}
    for split in found:
        assert found[split] == sorted(text for text in texts if assign_split(content_digest(text)) == split)


@pytest.mark.parametrize("count", [3, 4, 10, 20])
def test_a_folder_of_few_files_has_all_three_splits(count, tmp_path):
    texts = written(tmp_path / "texts", *(f"chapter {number} of {count}".encode() for number in range(count)))
    found = documents(tmp_path / "texts", tmp_path)
    assert set(found) == set(SPLITS)
    assert all(found.values())
    assert sorted(everything(found)) == sorted(texts)


@pytest.mark.parametrize("texts", [(b"x" * 40,), (b"a" * 33, b"b" * 200), (b"a" * 33, b"b" * 200, b"a" * 33)])
def test_one_or_two_texts_are_cut_at_ninety_and_ninety_five_percent_of_each(texts, tmp_path):
    written(tmp_path / "texts", *texts)
    found = documents(tmp_path / "texts", tmp_path)
    cuts = [(text, len(text) * 90 // 100, len(text) * 95 // 100) for text in texts]
    assert found["train"] == sorted(text[:first] for text, first, _ in cuts)
    assert found["validation"] == sorted(text[first:second] for text, first, second in cuts)
    assert found["test"] == sorted(text[second:] for text, _, second in cuts)


def test_a_cut_without_bytes_is_left_out(tmp_path):
    written(tmp_path / "texts", b"short", b"b" * 200)
    found = documents(tmp_path / "texts", tmp_path)
    assert found == {"train": [b"b" * 180, b"shor"], "validation": [b"b" * 10], "test": [b"b" * 10, b"t"]}


def test_other_names_of_the_same_texts_leave_the_splits_as_they_are(tmp_path):
    texts = [f"text {number}".encode() for number in range(5)]
    written(tmp_path / "there", *texts)
    written(tmp_path / "back", *reversed(texts))
    assert documents(tmp_path / "there", tmp_path) == documents(tmp_path / "back", tmp_path)


def test_data_prepared_by_the_hash_alone_are_not_taken_for_these(tmp_path):
    written(tmp_path / "texts", b"one", b"two", b"three", b"four")
    files = list_text_files(tmp_path / "texts", (tmp_path / "texts").glob("*"))
    by_hash = [
        dataclasses.replace(file, name=f"{split}[0:None]/{file.name}")
        for split, members in files_by_split(files).items()
        for file in members
    ]
    assert fingerprint_files(by_hash) not in TextFolder(path=tmp_path / "texts", data_dir=tmp_path).builder_config.name


def test_folders_named_like_splits_are_the_splits(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "texts" / split / "deep").mkdir(parents=True)
        (tmp_path / "texts" / split / "deep" / "a.txt").write_text(split)
    (tmp_path / "texts" / "readme.txt").write_text("no document")
    assert documents(tmp_path / "texts", tmp_path) == {"train": [b"train"], "test": [b"test"]}


def test_a_file_is_cut_at_ninety_and_ninety_five_percent_of_its_bytes(tmp_path):
    content = bytes(range(33, 33 + 90)) + "é".encode() + b"tail"
    (tmp_path / "enwik").write_bytes(content)
    length = len(content)
    found = documents(tmp_path / "enwik", tmp_path)
    assert b"".join(found[split][0] for split in ("train", "validation", "test")) == content
    assert len(found["train"][0]) == length * 90 // 100
    assert len(found["validation"][0]) == length * 95 // 100 - length * 90 // 100


def test_the_pattern_chooses_the_files(folder, tmp_path):
    (folder / "a.md").write_text("markdown")
    assert b"".join(everything(documents(folder, tmp_path, pattern="*.md"))) == b"markdown"


def test_compressed_files_are_read_as_what_is_in_them(tmp_path):
    texts = written(tmp_path / "plain", *(f"text {number}".encode() for number in range(30)))
    (tmp_path / "packed").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "packed" / f"{number}.txt.gz").write_bytes(gzip.compress(text))
    assert documents(tmp_path / "packed", tmp_path) == documents(tmp_path / "plain", tmp_path)
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress(bytes(range(65, 91)) * 4))
    assert documents(tmp_path / "one.txt.gz", tmp_path)["test"] == [b"UVWXYZ"]
    (tmp_path / "one.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"`path` must be a whole gzip file\. Received: .*one.txt.gz: Not a gzip"):
        open_source(path=tmp_path / "one.txt.gz")


def test_a_changed_folder_is_prepared_again(folder, tmp_path):
    before = documents(folder, tmp_path)
    (folder / "0.txt").write_text("other")
    after = documents(folder, tmp_path)
    assert b"text 0" in everything(before) and b"other" not in everything(before)
    assert b"text 0" not in everything(after) and b"other" in everything(after)


def test_a_text_moved_to_another_split_is_another_data_set(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "texts" / split).mkdir(parents=True)
    (tmp_path / "texts" / "train" / "a.txt").write_text("a")
    before = open_source(path=tmp_path / "texts", data_dir=tmp_path).fingerprint
    (tmp_path / "texts" / "train" / "a.txt").rename(tmp_path / "texts" / "test" / "a.txt")
    assert open_source(path=tmp_path / "texts", data_dir=tmp_path).fingerprint != before


def test_a_file_changed_while_preparing_leaves_nothing(folder, tmp_path):
    builder = TextFolder(path=folder, data_dir=tmp_path / "data")
    (folder / "0.txt").write_text("other")
    with pytest.raises(ValueError, match=r"`path` must not change while it is being read"):
        prepare(builder)
    assert not builder.data_path.exists()


def test_the_second_of_two_that_prepare_at_once_takes_the_result_of_the_first(folder, tmp_path, monkeypatch):
    generate = TextFolder._generate_examples
    others = [TextFolder(path=folder, data_dir=tmp_path)]

    def generate_after_another_process(self, parts):
        if others:
            prepare(others.pop())
        yield from generate(self, parts)

    monkeypatch.setattr(TextFolder, "_generate_examples", generate_after_another_process)
    assert sum(len(texts) for texts in documents(folder, tmp_path).values()) == 200
    assert not others


def test_what_another_process_prepared_after_opening_is_read(folder, tmp_path):
    source = open_source(path=folder, data_dir=tmp_path)
    prepare(TextFolder(path=folder, data_dir=tmp_path))
    assert sum(len(list(source.documents(split))) for split in ("train", "validation", "test")) == 200


def test_damaged_files_of_a_prepared_data_set_are_an_error_that_says_what_to_delete(tmp_path):
    written(tmp_path / "texts", b"one", b"two", b"three")
    source = open_source(path=tmp_path / "texts", data_dir=tmp_path)
    assert everything({split: [*source.documents(split)] for split in SPLITS})
    (records,) = tmp_path.rglob("*train.tfrecord*")
    content, folder = records.read_bytes(), records.parent
    for damaged, found in [
        (content[:-5] + bytes(5), "corrupted record"),
        (content[:-1], "truncated"),
        (None, "No such"),
    ]:
        records.unlink() if damaged is None else records.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"delete {folder} to prepare .* {folder}, with .*{found}"):
            [*source.documents("train")]
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(
        ValueError, match=rf"delete the folder of the data set in {tmp_path} to prepare .* with Failed to"
    ):
        open_source(path=tmp_path / "texts", data_dir=tmp_path)


def test_an_unpickled_builder_sees_the_folder_as_it_is(folder, tmp_path):
    builder = TextFolder(path=folder, data_dir=tmp_path)
    assert pickle.loads(pickle.dumps(builder)).data_dir == builder.data_dir
    (folder / "0.txt").write_text("other")
    assert pickle.loads(pickle.dumps(builder)).data_dir != builder.data_dir


def test_a_configuration_carries_folder_and_pattern(folder, tmp_path):
    config = TextFolderConfig(name="any", path=str(folder), pattern="1*.txt")
    builder = TextFolder(config=config, data_dir=tmp_path)
    assert (builder.builder_config.path, builder.builder_config.pattern) == (str(folder), "1*.txt")
    assert builder.builder_config.name.startswith("my_texts_")


def test_a_configuration_by_name_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"`config` must be a TextFolderConfig. Received: config='mine'."):
        TextFolder(config="mine", data_dir=tmp_path)


@pytest.mark.parametrize("path", [None, "/no/such/folder"])
def test_a_folder_that_is_not_there_is_an_error(path, tmp_path):
    with pytest.raises(ValueError, match=rf"`path` must be an existing folder or file. Received: path={path}."):
        TextFolder(path=path, data_dir=tmp_path)


def test_a_folder_or_file_without_text_is_an_error(tmp_path):
    (tmp_path / "empty").write_bytes(b"\n")
    for path in (tmp_path, tmp_path / "empty"):
        with pytest.raises(ValueError, match=r"`path` must hold text files that match `pattern`. Received: path=.*\*"):
            TextFolder(path=path, data_dir=tmp_path / "data")


def test_a_split_without_files_is_an_error_that_lists_the_others(tmp_path):
    (tmp_path / "texts" / "train").mkdir(parents=True)
    (tmp_path / "texts" / "train" / "a.txt").write_text("a")
    source = open_source(path=tmp_path / "texts", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"`split` must be one of train in text_folder/.* Received: split=test."):
        source.documents("test")


def test_one_file_that_is_no_text_is_an_error_that_names_it(tmp_path):
    (tmp_path / "picture.bin").write_bytes(b"abc\xff\x00\x01" * 9)
    with pytest.raises(ValueError, match=r"`path` must hold UTF-8 text. Received: .*picture.bin, wrong at byte 3"):
        TextFolder(path=tmp_path / "picture.bin", data_dir=tmp_path)
