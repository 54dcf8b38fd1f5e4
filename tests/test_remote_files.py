"""Files at addresses: how they are named, what is said where they cannot be reached, and what counts last."""

import errno
import pathlib
import sys
import types

import pytest

from tests import remote_paths  # noqa: F401  # registers the scheme memory://
from tf_sparse_attention import remote_files


@pytest.fixture
def place(tmp_path):
    """A remote folder that is not there yet."""
    return remote_files.remote_path(f"memory://{tmp_path}/bucket")


def test_local_copies_are_told_apart_and_can_be_recognised(monkeypatch, tmp_path):
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path))
    first, second, again = (remote_files.cache_folder(f"gs://b/{name}") for name in ("a_b", "a/b", "a_b/"))
    assert first != second and first == again
    assert first.parent == tmp_path and first.name.startswith("gs_b_a_b_")
    monkeypatch.delenv(remote_files.CACHE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert remote_files.cache_folder("gs://b").parent == tmp_path / ".cache" / "tf_sparse_attention"


def test_an_unknown_scheme_and_a_missing_package_are_named(monkeypatch):
    with pytest.raises(ValueError, match="`path`"):
        remote_files.remote_path("nowhere://bucket")
    monkeypatch.setitem(sys.modules, "etils", None)
    with pytest.raises(ImportError, match=r"gs://bucket needs etils: `pip install 'etils\[epath\]'`"):
        remote_files.remote_path("gs://bucket")


def test_an_address_without_its_second_slash_is_no_folder_here(tmp_path):
    for path in ("gs:/bucket/run", pathlib.PurePosixPath("gs://bucket/run")):
        with pytest.raises(ValueError, match="`path`"):
            remote_files.is_remote(path)
    assert remote_files.is_remote("gs://bucket/run")
    assert not any(map(remote_files.is_remote, ("./gs:/run", "C:/run", "a:b/run", tmp_path)))


def test_whatever_a_library_raises_becomes_one_line_with_what_to_do(place):
    for error, message in [
        ("File system scheme 's3' not implemented", r"scheme 's3' not implemented; set EPATH_USE_TF=false and"),
        ("no route\nand much more", r"^memory:.*/bucket cannot be reached: RuntimeError: no route$"),
    ]:
        with pytest.raises(remote_files.RemoteError, match=message), remote_files.raise_remote_errors(place):
            raise RuntimeError(error)


def test_a_full_disk_here_is_told_as_such(place, tmp_path, monkeypatch):
    remote_files.write_bytes(place / "file", b"content")

    def fill(source, target, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote_files, "shutil", types.SimpleNamespace(copyfileobj=fill))
    with pytest.raises(OSError, match="No space left on device") as raised:
        remote_files.download(place / "file", tmp_path / "file")
    assert raised.value.errno == errno.ENOSPC
    assert not (tmp_path / "file").exists()


def test_a_folder_that_is_not_finished_changes_nothing(place):
    remote_files.write_bytes(place / "old", b"content")
    with pytest.raises(KeyError), remote_files.output_folder(place, "last") as folder:
        folder.mkdir()
        raise KeyError
    assert remote_files.names(place) == ["old"]


def test_the_last_file_is_removed_first_and_written_last(place, tmp_path, monkeypatch):
    (tmp_path / "new" / "a").mkdir(parents=True)
    for name in ("a/b", "c", "last"):
        (tmp_path / "new" / name).write_text("new")
    for name in ("last", "old"):
        remote_files.write_bytes(place / name, b"old")
    upload, seen = remote_files.upload, []

    def look(source, target):
        seen.append((source.name, remote_files.exists(place / "last")))
        return upload(source, target)

    monkeypatch.setattr(remote_files, "upload", look)
    remote_files.upload_folder(tmp_path / "new", place, "last")
    assert seen == [("b", False), ("c", False), ("last", False)]
    assert sorted(remote_files.stat_all(place)) == ["a/b", "c", "last"]
