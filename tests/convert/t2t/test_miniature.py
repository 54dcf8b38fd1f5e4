"""The miniature of a published checkpoint is converted as those are."""

import numpy as np
import pytest

from tf_sparse_attention.convert import from_t2t_checkpoint
from tf_sparse_attention.convert.t2t.files import open_checkpoint
from tf_sparse_attention.convert.t2t.miniature import CHECKPOINT, write_miniature
from tf_sparse_attention.trainers.convert import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_miniature(tmp_path_factory.mktemp("miniature") / "new")


@pytest.mark.full
def test_the_command_writes_the_same_from_the_same_seed_and_an_encoder(folder, tmp_path):
    commands = {"again": [], "other": ["--seed=1"], "encoder": ["--encoder"]}
    for name, options in commands.items():
        assert main(["miniature", str(tmp_path / name), *options]) == 0
    first, again, other = (arrays_in(each) for each in (folder, tmp_path / "again", tmp_path / "other"))
    assert first.keys() == again.keys() == other.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)
    model = from_t2t_checkpoint(tmp_path / "encoder" / CHECKPOINT)
    assert (len(model.encoder.blocks), len(model.backbone.blocks)) == (3, 3)


def arrays_in(folder):
    with open_checkpoint(folder / CHECKPOINT) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint.shapes}


def test_what_is_there_is_not_written_over(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["miniature", str(tmp_path)]) == 2
    assert "`folder` must not exist yet" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
