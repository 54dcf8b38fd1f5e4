"""Files and folders that are replaced as a whole or not at all."""

import errno
import os
import time
from pathlib import Path

import pytest

from tf_sparse_attention.atomic_files import STALE_AFTER, atomic_file, atomic_folder, remove_stale


def test_a_folder_takes_the_place_of_the_earlier_one(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    with atomic_folder(tmp_path / "made") as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
        assert os.listdir(tmp_path / "made") == ["old"]
    assert os.listdir(tmp_path) == ["made"]
    assert os.listdir(tmp_path / "made") == ["new"]


def test_a_full_disk_is_named_and_leaves_the_earlier_file_or_folder(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    for atomic, name, write in ((atomic_file, "file", Path.touch), (atomic_folder, "folder", Path.mkdir)):
        message = f"No space left on device: '{tmp_path}/{name}'"
        with pytest.raises(OSError, match=message), atomic(tmp_path / name) as temporary:
            write(temporary)
            raise OSError(errno.ENOSPC, "No space left on device")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and (tmp_path / "file").read_text() == "old"


def test_two_writers_with_one_process_id_publish_one_whole_file(tmp_path):
    path = tmp_path / "made.npz"
    with atomic_file(path) as first, open(first, "w") as file:
        file.write("first begins,")
        with atomic_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
        file.write(" and ends")
    assert path.read_text() == "first begins, and ends"
    assert os.listdir(tmp_path) == ["made.npz"]


def test_two_writers_publish_one_whole_folder(tmp_path):
    with atomic_folder(tmp_path / "made") as first:
        first.mkdir()
        (first / "of first").touch()
        with atomic_folder(tmp_path / "made") as second:
            second.mkdir()
            (second / "of second").touch()
    assert os.listdir(tmp_path) == ["made"] and os.listdir(tmp_path / "made") == ["of first"]


def test_a_folder_that_another_writer_publishes_in_between_is_replaced(tmp_path, monkeypatch):
    rename, target, others = os.rename, tmp_path / "made", ["of another"]

    def rename_after_another(source, destination):
        if destination == target and others:
            target.mkdir()
            (target / others.pop()).touch()
        rename(source, destination)

    with atomic_folder(target) as folder:
        folder.mkdir()
        (folder / "own").touch()
        monkeypatch.setattr(os, "rename", rename_after_another)
    assert os.listdir(target) == ["own"]


def test_temporaries_of_living_processes_stay_and_those_of_killed_ones_go(tmp_path):
    old = time.time() - STALE_AFTER - 60
    with atomic_file(tmp_path / "made.npz") as file, atomic_folder(tmp_path / "made") as folder:
        file.touch()
        folder.mkdir()
        (folder / "part").touch()
        os.utime(folder.parent, (old, old))  # a folder is as new as the newest file in it
        living = sorted(os.listdir(tmp_path))
        (tmp_path / ".killed.0a.incomplete.npz").touch()
        (tmp_path / ".killed.incomplete-0a").mkdir()
        for path in tmp_path.glob(".killed*"):
            os.utime(path, (old, old))
        remove_stale(tmp_path)
        assert sorted(os.listdir(tmp_path)) == living and len(living) == 2


def test_a_file_takes_its_place_when_the_block_ends(tmp_path):
    with atomic_file(tmp_path / "model.keras") as temporary:
        assert temporary.suffix == ".keras"
        temporary.write_text("new")
        assert not (tmp_path / "model.keras").exists()
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "model.keras") as temporary:
        temporary.write_text("ne")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["model.keras"]
    assert (tmp_path / "model.keras").read_text() == "new"
