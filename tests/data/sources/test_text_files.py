"""Folders of text files as data sets: splits, fingerprints and errors."""

import gzip

import pytest

from tf_sparse_attention.data import open_source
from tf_sparse_attention.data.sources.file_splits import SPLITS, assign_split, content_digest


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


def test_splits_do_not_depend_on_names(tmp_path):
    texts = [f"text {number}".encode() for number in range(5)]
    written(tmp_path / "there", *texts)
    written(tmp_path / "back", *reversed(texts))
    assert documents(tmp_path / "there", tmp_path) == documents(tmp_path / "back", tmp_path)


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


def test_compressed_files_are_decompressed(tmp_path):
    texts = written(tmp_path / "plain", *(f"text {number}".encode() for number in range(30)))
    (tmp_path / "packed").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "packed" / f"{number}.txt.gz").write_bytes(gzip.compress(text))
    assert documents(tmp_path / "packed", tmp_path) == documents(tmp_path / "plain", tmp_path)
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress(bytes(range(65, 91)) * 4))
    assert documents(tmp_path / "one.txt.gz", tmp_path)["test"] == [b"UVWXYZ"]
    (tmp_path / "one.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"`path` must be a complete gzip file\. Received: .*one.txt.gz: Not a gzip"):
        open_source(path=tmp_path / "one.txt.gz")


def test_a_changed_folder_is_read_again(folder, tmp_path):
    before = documents(folder, tmp_path)
    (folder / "0.txt").write_text("other")
    after = documents(folder, tmp_path)
    assert b"text 0" in everything(before) and b"other" not in everything(before)
    assert b"text 0" not in everything(after) and b"other" in everything(after)


def test_a_file_that_changes_while_it_is_read_is_an_error(folder, tmp_path):
    source = open_source(path=folder, data_dir=tmp_path)
    for number in range(200):
        (folder / f"{number}.txt").write_text("other")
    with pytest.raises(ValueError, match=r"`path` must not change while it is being read"):
        list(source.documents("train"))


def test_nothing_is_written(folder, tmp_path):
    documents(folder, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_text_moved_to_another_split_is_another_data_set(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "texts" / split).mkdir(parents=True)
    (tmp_path / "texts" / "train" / "a.txt").write_text("a")
    before = open_source(path=tmp_path / "texts", data_dir=tmp_path).fingerprint
    (tmp_path / "texts" / "train" / "a.txt").rename(tmp_path / "texts" / "test" / "a.txt")
    assert open_source(path=tmp_path / "texts", data_dir=tmp_path).fingerprint != before


def test_a_missing_folder_is_an_error():
    with pytest.raises(ValueError, match=r"`path` must be an existing folder or file. Received: path=/no/such/folder."):
        open_source(path="/no/such/folder")


def test_a_folder_or_file_without_text_is_an_error(tmp_path):
    (tmp_path / "empty").write_bytes(b"\n")
    for path in (tmp_path, tmp_path / "empty"):
        with pytest.raises(ValueError, match=r"`path` must hold text files that match `pattern`. Received: path=.*\*"):
            open_source(path=path)


def test_the_error_for_a_split_without_files_lists_the_others(tmp_path):
    (tmp_path / "texts" / "train").mkdir(parents=True)
    (tmp_path / "texts" / "train" / "a.txt").write_text("a")
    source = open_source(path=tmp_path / "texts", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"`split` must be one of train in text_folder/.* Received: split=test."):
        source.documents("test")


def test_the_error_names_a_file_that_is_not_text(tmp_path):
    (tmp_path / "picture.bin").write_bytes(b"abc\xff\x00\x01" * 9)
    with pytest.raises(ValueError, match=r"`path` must hold UTF-8 text. Received: .*picture.bin, invalid at byte 3"):
        open_source(path=tmp_path / "picture.bin")
