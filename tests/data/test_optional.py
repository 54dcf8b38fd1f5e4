"""The folder of data sets, with and without tensorflow-datasets."""

import os

import numpy as np
import pytest
from tensorflow_datasets.core import constants

from tf_sparse_attention.data import open_audio, open_images, open_speech
from tf_sparse_attention.data.optional import data_folder


def test_the_folder_of_data_sets_is_that_of_tfds_unless_another_is_given(monkeypatch):
    assert data_folder() == constants.get_default_data_dir()
    monkeypatch.setenv("TFDS_DATA_DIR", "/mine")
    assert data_folder() == constants.get_default_data_dir() == "/mine"
    assert data_folder("~/yours") == os.path.join(os.path.expanduser("~"), "yours")


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "images.npz", x_train=np.zeros((1, 2, 2, 3), "uint8"))
    np.savez(tmp_path / "sounds.npz", audio=np.zeros(3, "int16"), offsets=np.array([0, 3]), sample_rate=8000)
    (tmp_path / "spoken" / "train").mkdir(parents=True)
    for name in ("a.wav", "a.txt"):
        (tmp_path / "spoken" / "train" / name).write_bytes(b"a")
    return tmp_path


def test_all_prepared_data_are_in_the_data_folder(files, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", "/mine")
    opened = (open_images, "images.npz"), (open_audio, "sounds.npz"), (open_speech, "spoken")
    assert [opener(path=files / name).data_dir for opener, name in opened] == ["/mine"] * 3
