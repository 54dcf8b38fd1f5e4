"""The data set of the source code of the standard library: its files and its configuration name."""

import os
import sys
import sysconfig

import pytest

from tf_sparse_attention.data import open_source
from tf_sparse_attention.data.sources.python_source import PythonSource, library_files


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small standard library instead of the interpreter's."""
    folder = tmp_path / "library"
    for name in ("a.py", "json/b.py", "test/c.py", "unittest/test/d.py", "site-packages/e.py", "_sysconfigdata_x.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    (folder / "notes.txt").write_text("no code")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


def test_only_library_files_are_included(library):
    assert {path.relative_to(library).as_posix() for path in library_files(library)} == {
        "a.py",
        "json/b.py",
        "latin.py",
    }


def test_a_file_that_is_not_utf8_is_left_out(library, tmp_path):
    source = open_source(data_dir=tmp_path)
    assert sum(len(list(source.documents(split))) for split in source.splits) == 2


def test_the_configuration_names_interpreter_and_content(library, tmp_path):
    first = PythonSource(data_dir=tmp_path).builder_config.name
    release = "_".join(map(str, sys.version_info[:3]))
    assert first.startswith(f"{sys.implementation.name}_{release}_")
    (library / "a.py").write_text("# patched\n")
    assert PythonSource(data_dir=tmp_path).builder_config.name != first


def test_the_configuration_of_another_interpreter_is_an_error(library, tmp_path):
    with pytest.raises(ValueError, match=r"`config` must be .*, for this interpreter\. Received: config=cpython_2_7"):
        PythonSource(data_dir=tmp_path, config="cpython_2_7")


def test_an_interpreter_without_source_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python.zip"))
    with pytest.raises(ValueError, match=r"`stdlib` must be a folder of Python source. Received: stdlib="):
        PythonSource(data_dir=tmp_path)


def test_the_running_interpreter_gives_three_splits_without_a_download(tmp_path):
    source = open_source(data_dir=tmp_path)
    sizes = {split: sum(map(len, source.documents(split))) for split in source.splits}
    assert list(sizes) == ["train", "validation", "test"]
    assert sizes["train"] > 4e6  # Python 3.11 to 3.13 have about 10 MB.
    assert all(sizes[split] > 0.02 * sizes["train"] for split in ("validation", "test"))
    assert not os.path.exists(tmp_path / "downloads") or not any(
        files for _, _, files in os.walk(tmp_path / "downloads")
    )


def test_no_text_is_in_two_splits(tmp_path):
    source = open_source(data_dir=tmp_path)
    texts = {split: set(source.documents(split)) for split in source.splits}
    assert not texts["train"] & (texts["validation"] | texts["test"])
    assert not texts["validation"] & texts["test"]
