"""The data set of the source code of the standard library: its files and its configuration name."""

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


def test_library_files_in_utf8_are_the_documents(library, tmp_path):
    names = {path.relative_to(library).as_posix() for path in library_files(library)}
    assert names == {"a.py", "json/b.py", "latin.py"}
    source = open_source(data_dir=tmp_path)
    assert sum(len(list(source.documents(split))) for split in source.splits) == 2


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
