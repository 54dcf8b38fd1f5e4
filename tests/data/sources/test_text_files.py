"""Folders of text files as data sets: splits, fingerprints and errors."""

import gzip

import pytest

from tf_sparse_attention.data import open_source
from tf_sparse_attention.data.sources.file_splits import SPLITS


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


def test_a_folder_of_three_files_has_all_splits_whatever_the_names_are(tmp_path):
    texts = written(tmp_path / "there", *(f"chapter {number}".encode() for number in range(3)))
    written(tmp_path / "back", *reversed(texts))
    found = documents(tmp_path / "there", tmp_path)
    assert set(found) == set(SPLITS) and all(found.values())
    assert sorted(everything(found)) == texts
    assert documents(tmp_path / "back", tmp_path) == found


def test_one_or_two_texts_are_cut_at_ninety_and_ninety_five_percent_of_their_bytes(tmp_path, subtests):
    a, b, two_bytes = b"a" * 33, b"b" * 200, bytes(range(33, 33 + 90)) + "é".encode() + b"tail"
    for number, texts in enumerate([(b"x" * 40,), (a, b), (a, b, a), (two_bytes,)]):
        path = tmp_path / str(number)
        written(path, *texts)
        cuts = [(text, len(text) * 90 // 100, len(text) * 95 // 100) for text in texts]
        expected = {
            "train": sorted(text[:first] for text, first, _ in cuts),
            "validation": sorted(text[first:second] for text, first, second in cuts),
            "test": sorted(text[second:] for text, _, second in cuts),
        }
        with subtests.test(texts=texts):
            assert documents(path, tmp_path) == expected
            if len(texts) == 1:  # the path of a file
                assert documents(path / "0.txt", tmp_path) == expected
    written(tmp_path / "short", b"short", b"b" * 200)  # a cut without bytes is left out
    expected = {"train": [b"b" * 180, b"shor"], "validation": [b"b" * 10], "test": [b"b" * 10, b"t"]}
    assert documents(tmp_path / "short", tmp_path) == expected


def test_folders_named_like_splits_are_the_splits(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "texts" / split / "deep").mkdir(parents=True)
        (tmp_path / "texts" / split / "deep" / "a.txt").write_text(split)
    (tmp_path / "texts" / "readme.txt").write_text("no document")
    assert documents(tmp_path / "texts", tmp_path) == {"train": [b"train"], "test": [b"test"]}
    source = open_source(path=tmp_path / "texts", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"`split` must be one of train, test .*split=validation"):
        source.documents("validation")


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


def test_a_file_that_changes_while_it_is_read_is_an_error(folder, tmp_path):
    source = open_source(path=folder, data_dir=tmp_path)
    for number in range(200):
        (folder / f"{number}.txt").write_text("other")
    with pytest.raises(ValueError, match=r"`path` must not change while it is being read"):
        list(source.documents("train"))


def test_paths_without_text_are_errors(tmp_path, subtests):
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "picture.bin").write_bytes(b"abc\xff\x00\x01" * 9)
    for name, message in [
        ("missing", "existing folder or file"),
        ("empty", "match `pattern`"),
        ("folder", "match `pattern`"),
        ("picture.bin", "picture.bin, invalid at byte 3"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`path`.*{message}"):
            open_source(path=tmp_path / name)
