"""Folders that are replaced as a whole or not at all."""

import errno
import os

import pytest

from tf_sparse_attention.files import atomic_file, atomic_folder


def test_a_folder_takes_the_place_of_the_earlier_one(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    with atomic_folder(tmp_path / "made") as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
        assert os.listdir(tmp_path / "made") == ["old"]
    assert os.listdir(tmp_path) == ["made"]
    assert os.listdir(tmp_path / "made") == ["new"]


def test_an_error_leaves_the_earlier_folder_and_nothing_else(tmp_path):
    (tmp_path / "made").mkdir()
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "made") as temporary:
        temporary.mkdir()
        raise RuntimeError
    assert os.listdir(tmp_path) == ["made"]
    assert os.listdir(tmp_path / "made") == []


def test_a_full_disk_is_named_and_leaves_the_earlier_file(tmp_path):
    (tmp_path / "made").write_text("old")
    for atomic in (atomic_file, atomic_folder):
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/made'"), atomic(tmp_path / "made"):
            raise OSError(errno.ENOSPC, "No space left on device")
    assert os.listdir(tmp_path) == ["made"] and (tmp_path / "made").read_text() == "old"
