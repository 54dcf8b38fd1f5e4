"""Folders of text files, and the source code of the standard library, as data sets."""

import gzip
import sys
import sysconfig

import pytest

from tf_sparse_attention.data import open_source
from tf_sparse_attention.data.sources.file_splits import SPLITS
from tf_sparse_attention.data.sources.python_source import PythonSource, library_files


def written(path, *texts):
    path.mkdir()
    for number, text in enumerate(texts):
        (path / f"{number}.txt").write_bytes(text)
    return list(texts)


def documents(path, data_dir, **arguments):
    source = open_source(path=path, data_dir=data_dir, **arguments)
    return {split: sorted(source.documents(split)) for split in source.splits}


def test_a_folder_of_three_files_has_all_splits_whatever_the_names_are(tmp_path):
    texts = written(tmp_path / "there", *(f"chapter {number}".encode() for number in range(3)))
    written(tmp_path / "back", *reversed(texts))
    found = documents(tmp_path / "there", tmp_path)
    assert set(found) == set(SPLITS) and all(found.values())
    assert sorted(text for part in found.values() for text in part) == texts
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


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small standard library instead of the interpreter's."""
    folder = tmp_path / "library"
    for name in (
        "a.py",
        "b.py",
        "json/b.py",
        "test/c.py",
        "unittest/test/d.py",
        "site-packages/e.py",
        "_sysconfigdata_x.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    (folder / "notes.txt").write_text("no code")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


def test_library_files_in_utf8_are_the_documents(library, tmp_path):
    names = {path.relative_to(library).as_posix() for path in library_files(library)}
    assert names == {"a.py", "b.py", "json/b.py", "latin.py"}
    source = open_source(data_dir=tmp_path)
    assert sum(len(list(source.documents(split))) for split in source.splits) == 3


def test_the_configuration_names_interpreter_and_content(library, tmp_path, monkeypatch):
    first = PythonSource(data_dir=tmp_path).builder_config.name
    release = "_".join(map(str, sys.version_info[:3]))
    assert first.startswith(f"{sys.implementation.name}_{release}_")
    (library / "a.py").write_text("# patched\n")
    assert PythonSource(data_dir=tmp_path).builder_config.name != first
    with pytest.raises(ValueError, match=r"`config` .*=cpython_2_7"):
        PythonSource(data_dir=tmp_path, config="cpython_2_7")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python.zip"))
    with pytest.raises(ValueError, match="`stdlib`"):
        PythonSource(data_dir=tmp_path)


def test_the_running_interpreter_gives_three_separate_splits_without_a_download(tmp_path):
    source = open_source(data_dir=tmp_path)
    texts = {split: set(source.documents(split)) for split in source.splits}
    assert list(texts) == ["train", "validation", "test"]
    sizes = {split: sum(map(len, own)) for split, own in texts.items()}
    assert sizes["train"] > 4e6  # Python 3.11 to 3.13 have about 10 MB
    assert all(sizes[split] > 0.02 * sizes["train"] for split in ("validation", "test"))
    assert not texts["train"] & (texts["validation"] | texts["test"])
    assert not texts["validation"] & texts["test"]
    assert not [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]
