"""Files that are complete or not there."""

import json

import pytest

from tf_sparse_attention.trainers.shared.files import atomic_file, write_json


def test_a_file_takes_its_place_when_the_block_ends(tmp_path):
    with atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("ne")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_the_file_beside_keeps_the_extension(tmp_path):
    with atomic_file(tmp_path / "model.keras") as temporary:
        assert temporary.suffix == ".keras"
        temporary.write_text("")


def test_json_is_written_as_plain_data(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": [1, None]}
