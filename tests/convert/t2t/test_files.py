"""A checkpoint is found as a prefix, a file, a folder or a zip file; a damaged one is an error, never a wrong model."""

import zipfile

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import SCOPE, write_checkpoint
from tf_sparse_attention.convert.t2t.files import open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")


def zipped(folder, archive, root=""):
    with zipfile.ZipFile(archive, "w") as files:
        for file in folder.iterdir():
            files.write(file, f"{root}{file.name}")
    return archive


def test_a_prefix_a_file_a_folder_and_a_zip_file_lead_to_the_same_checkpoint(small_checkpoint, tmp_path):
    (tmp_path / "files").mkdir()
    prefix = small_checkpoint.write(tmp_path / "files")
    archives = [zipped(prefix.parent, tmp_path / f"{number}.zip", root) for number, root in enumerate(["", "model/"])]
    (prefix.parent / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n', encoding="utf-8")
    index = prefix.with_name(prefix.name + ".index")
    data = prefix.with_name(prefix.name + ".data-00000-of-00001")
    for path in (prefix, str(prefix), index, data, prefix.parent, *archives):
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.prefix.name == prefix.name
            assert (checkpoint.prefix == prefix) == (path not in archives)
            np.testing.assert_array_equal(checkpoint.read("global_step"), 7)


def test_damaged_and_missing_files_are_errors(small_checkpoint, tmp_path, subtests):
    folder = tmp_path / "files"
    folder.mkdir()
    prefix = small_checkpoint.write(folder)
    archive = zipped(folder, tmp_path / "checkpoint.zip")
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="must be a valid zip file"):
        tsa.convert.from_t2t_checkpoint(archive)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "model.ckpt-1", tmp_path / "missing.zip"):
        with subtests.test(path=path), pytest.raises(ValueError, match="`path` must"):
            tsa.convert.from_t2t_checkpoint(path)
    for ending in (".index", ".data-00000-of-00001"):
        file = prefix.with_name(prefix.name + ending)
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with subtests.test("cut", ending=ending), pytest.raises(ValueError, match=r"complete.*model.ckpt-7"):
            tsa.convert.from_t2t_checkpoint(prefix)
        file.write_bytes(content)
    file.unlink()
    with pytest.raises(ValueError, match="complete TensorFlow checkpoint"):
        tsa.convert.from_t2t_checkpoint(prefix)
    small_checkpoint.tensors[f"{SCOPE}final_dense_2/bias"][3] = np.nan
    with pytest.raises(ValueError, match=r"finite values.*final_dense_2/bias"):
        tsa.convert.from_t2t_checkpoint(small_checkpoint.write(folder))
    write_checkpoint(folder / "model.ckpt-8", small_checkpoint.tensors)
    with pytest.raises(ValueError, match=r"exactly one checkpoint.*model.ckpt-7, model.ckpt-8"):
        tsa.convert.from_t2t_checkpoint(folder)
