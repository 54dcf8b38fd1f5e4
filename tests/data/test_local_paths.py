"""Folders of data: local copies of remote data are kept up to date, and prepared data are in the folder of TFDS."""

import json
import os

import numpy as np
import pytest
from tensorflow_datasets.core import constants

from tests import remote_paths  # noqa: F401  # registers the schemes
from tf_sparse_attention import remote_files
from tf_sparse_attention.data import open_audio, open_images, open_labeled, open_source, open_speech
from tf_sparse_attention.data.local_paths import data_folder, local_path


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.full)])
def place(request, tmp_path, monkeypatch):
    """A remote folder with two files, one of them in a subfolder."""
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "cache"))
    place = remote_files.remote_path(f"{request.param}://{tmp_path}/bucket/books")
    remote_files.write_bytes(place / "train" / "a.txt", b"one")
    remote_files.write_bytes(place / "test" / "b.txt", b"two")
    return place


def texts_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.txt")}


def test_a_copy_has_the_name_and_content_of_the_folder_or_file(place, tmp_path):
    found = local_path(str(place))
    assert found.name == "books"
    assert texts_of(found) == {"train/a.txt": "one", "test/b.txt": "two"}
    names = {open_source(path=path, data_dir=tmp_path).name for path in (str(place), found)}
    assert len(names) == 1
    rows = "\n".join(json.dumps({"text": "a", "label": label}) for label in "xy")
    remote_files.write_bytes(place / "reviews.jsonl", rows.encode())
    assert local_path(str(place / "reviews.jsonl")).read_text() == rows
    source = open_labeled(path=str(place / "reviews.jsonl"), data_dir=tmp_path)
    assert source.text.name.startswith("json_lines/reviews")
    assert (local_path(None), local_path("books")) == (None, "books")  # local paths are unchanged
    with pytest.raises(ValueError, match="`path`"):
        local_path(f"{place}/none")


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


def test_the_folder_of_data_sets_is_that_of_tfds_unless_another_is_given(monkeypatch):
    assert data_folder() == constants.get_default_data_dir()
    monkeypatch.setenv("TFDS_DATA_DIR", "/mine")
    assert data_folder() == constants.get_default_data_dir() == "/mine"
    assert data_folder("~/yours") == os.path.join(os.path.expanduser("~"), "yours")


def test_all_prepared_data_are_in_the_data_folder(tmp_path, monkeypatch):
    np.savez(tmp_path / "images.npz", x_train=np.zeros((1, 2, 2, 3), "uint8"))
    np.savez(tmp_path / "sounds.npz", audio=np.zeros(3, "int16"), offsets=np.array([0, 3]), sample_rate=8000)
    (tmp_path / "spoken" / "train").mkdir(parents=True)
    for name in ("a.wav", "a.txt"):
        (tmp_path / "spoken" / "train" / name).write_bytes(b"a")
    monkeypatch.setenv("TFDS_DATA_DIR", "/mine")
    opened = (open_images, "images.npz"), (open_audio, "sounds.npz"), (open_speech, "spoken")
    assert [opener(path=tmp_path / name).data_dir for opener, name in opened] == ["/mine"] * 3
