"""Warnings of files that are left out, once per process."""

import pytest

from tf_sparse_attention.data import open_audio, open_source, open_speech


@pytest.fixture
def written(tmp_path):
    def write(*names):
        for name in names:
            path = tmp_path / "texts" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"text {name}")
        return tmp_path / "texts"

    return write


def test_splits_without_a_folder_and_files_outside_of_those_are_named(written, tmp_path, caplog):
    path = written("train/a.txt", "train/b.txt", "valid/c.txt", "readme.txt", ".git/d.txt")
    source = open_source(path=path, data_dir=tmp_path)
    assert source.splits == ("train",)
    assert caplog.messages == [
        f"{path} has a folder for train only: there is no split validation or test.",
        f"2 of the files in {path} are left out (not in train), such as readme.txt.",
    ]
    open_source(path=path, data_dir=tmp_path)
    assert len(caplog.messages) == 2


def test_files_that_the_pattern_leaves_out_are_named(written, tmp_path, caplog):
    path = written("a.txt", "b.txt", "c.txt", "deep/d.md", ".hidden.md")
    open_source(path=path, data_dir=tmp_path)
    assert caplog.messages == [f"1 of the files in {path} are left out (not named **/*.txt), such as deep/d.md."]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.txt", ["a.txt", "b.txt", "c.txt"]),
        ("*.txt", ["a.txt", "b.txt", "c.txt", "deep/d.md"]),
        ("**/*", ["a.txt", "b.md", "c.rst"]),
        ("**/*.txt", ["train/a.txt", "validation/b.txt", "test/c.txt"]),
    ],
)
def test_nothing_is_said_of_a_folder_all_of_which_is_read(pattern, names, written, tmp_path, caplog):
    open_source(path=written(*names), pattern=pattern, data_dir=tmp_path)
    assert not caplog.messages


def test_folders_of_sound_say_the_same(written, tmp_path, caplog):
    path = written("train/a.wav", "train/a.flac", "b.wav")
    assert open_audio(path=path, data_dir=tmp_path).splits == ("train",)
    assert [message.partition(f"{path} ")[2] for message in caplog.messages] == [
        "has a folder for train only: there is no split validation or test.",
        "are left out (not in train), such as b.wav.",
        "are left out (not .wav), such as train/a.flac.",
    ]


def test_a_folder_of_speech_says_which_splits_it_lacks(written, tmp_path, caplog):
    path = written("train/a.wav", "train/a.txt", "test/b.wav", "test/b.txt")
    assert open_speech(path=path, data_dir=tmp_path).splits == ("train", "test")
    assert caplog.messages == [f"{path} has a folder for train, test only: there is no split validation."]


def test_nothing_is_logged_of_folders_and_hidden_files(written, tmp_path, caplog):
    open_source(path=written("a.txt", "b.txt", "c.txt", "deep/.d.md"), data_dir=tmp_path)
    assert not caplog.messages
