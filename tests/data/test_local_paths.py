"""Remote data are read from a local copy, which is kept up to date."""

import json
import os

import pytest

from tests import remote_paths  # noqa: F401  # registers the schemes
from tf_sparse_attention import remote_files
from tf_sparse_attention.data import open_labeled, open_source
from tf_sparse_attention.data.local_paths import local_path


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.full)])
def place(request, tmp_path, monkeypatch):
    """A remote folder with two files, one of them in a subfolder."""
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "cache"))
    place = remote_files.remote_path(f"{request.param}://{tmp_path}/bucket/books")
    remote_files.write_bytes(place / "train" / "a.txt", b"one")
    remote_files.write_bytes(place / "test" / "b.txt", b"two")
    yield place
    if request.param == "memory":
        place.rmtree()


def texts_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.txt")}


def test_a_copy_has_the_name_of_the_folder(place):
    found = local_path(str(place))
    assert found.name == "books"
    assert texts_of(found) == {"train/a.txt": "one", "test/b.txt": "two"}


def test_only_what_changed_is_copied_again(place, monkeypatch):
    found, copied = local_path(str(place)), []
    download = remote_files.download

    def count(source, target):
        copied.append(source.name)
        download(source, target)

    monkeypatch.setattr(remote_files, "download", count)
    assert local_path(str(place)) == found and copied == []
    remote_files.write_bytes(place / "train" / "a.txt", b"another")
    remote_files.write_bytes(place / "train" / "c.txt", b"three")
    remote_files.remove(place / "test" / "b.txt")
    assert texts_of(local_path(str(place))) == {"train/a.txt": "another", "train/c.txt": "three"}
    (found / "train" / "c.txt").write_text("damaged")
    os.truncate(found / "train" / "a.txt", 2)
    assert texts_of(local_path(str(place))) == {"train/a.txt": "another", "train/c.txt": "three"}
    assert copied == ["a.txt", "c.txt", "a.txt", "c.txt"]


def test_what_was_copied_before_an_interruption_is_not_copied_again(place, monkeypatch):
    download, copied = remote_files.download, []

    def stop(source, target):
        if copied:
            raise KeyboardInterrupt
        copied.append(source.name)
        download(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remote_files, "download", stop)
        local_path(str(place))
    monkeypatch.setattr(remote_files, "download", lambda source, target: copied.append(source.name))
    local_path(str(place))
    assert sorted(copied) == ["a.txt", "b.txt"]


def test_a_remote_source_equals_the_local_source(place, tmp_path):
    names = {open_source(path=path, data_dir=tmp_path).name for path in (str(place), local_path(str(place)))}
    assert len(names) == 1


def test_a_single_file_is_copied(place, tmp_path):
    rows = [json.dumps({"text": "a", "label": label}) for label in "xy"]
    remote_files.write_bytes(place / "reviews.jsonl", "\n".join(rows).encode())
    address = str(place / "reviews.jsonl")
    assert local_path(address).read_text() == "\n".join(rows)
    assert open_labeled(path=address, data_dir=tmp_path).text.name.startswith("json_lines/reviews")


def test_local_paths_are_unchanged_and_a_missing_remote_path_is_an_error(place):
    assert (local_path(None), local_path("books")) == (None, "books")
    with pytest.raises(ValueError, match=rf"`path` must be an existing folder or file. Received: path={place}/none"):
        local_path(f"{place}/none")
