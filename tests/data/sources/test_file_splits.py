"""Files are listed, hashed and split by their content, with warnings about files that are left out."""

import os
import pathlib

import pytest

from tf_sparse_attention.data import open_audio, open_source, open_speech
from tf_sparse_attention.data.sources import file_splits
from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    DataFile,
    assign_split,
    content_digest,
    file_fingerprint,
    fingerprint_files,
    nonempty_splits,
    scan_file,
    split_by_hash,
)
from tf_sparse_attention.data.sources.text_files import list_texts


def listed(folder, **arguments):
    return list_texts(folder, [path for path in folder.rglob("*") if path.is_file()], **arguments)


def made(digests):
    return [DataFile(str(number), pathlib.Path(str(number)), digest) for number, digest in enumerate(digests)]


def of_percents(*percents):
    return made(f"{percent:016x}{number:016x}" for number, percent in enumerate(percents))


def of_numbers(numbers):
    return made(content_digest(str(number).encode()) for number in numbers)


def names(splits):
    return {split: [int(file.name) for file in files] for split, files in splits.items()}


def members(files):
    return {file.digest: split for split, part in nonempty_splits(files).items() for file in part}


def test_the_split_depends_on_the_content_alone(tmp_path):
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.txt").write_text("same")
    first, second = listed(tmp_path)
    assert assign_split(first.digest) == assign_split(second.digest)


def test_the_split_of_a_content_never_changes():
    assert [assign_split(content_digest(text)) for text in (b"0", b"7", b"10")] == ["train", "train", "validation"]
    assert assign_split("0" * 32) == "train"
    assert assign_split(f"{89:016x}" + "f" * 16) == "train"
    assert assign_split(f"{90:016x}" + "0" * 16) == "validation"
    assert assign_split(f"{94:016x}" + "0" * 16) == "validation"
    assert assign_split(f"{195:016x}" + "0" * 16) == "test"


def test_about_ninety_five_and_five_percent_go_to_the_splits():
    splits = [assign_split(content_digest(str(number).encode())) for number in range(10_000)]
    # Four standard deviations of a binomial count.
    assert abs(splits.count("train") - 9000) < 120
    assert abs(splits.count("validation") - 500) < 88
    assert abs(splits.count("test") - 500) < 88


@pytest.mark.parametrize(
    "percents, expected",
    [
        ((10, 30, 20), {"train": [0], "validation": [2], "test": [1]}),  # none beyond a border: the nearest to it
        ((97, 98, 99), {"train": [0], "validation": [1], "test": [2]}),  # all beyond it: the shares hold
        ((92, 10, 50, 91), {"train": [1, 2], "validation": [3], "test": [0]}),
        ((92, 10, 50, 96), {"train": [1, 2], "validation": [0], "test": [3]}),  # as the hash says
        ((99, 10, 50, 96), {"train": [1, 2], "validation": [3], "test": [0]}),
    ],
)
def test_the_highest_hashes_are_held_out(percents, expected):
    assert names(nonempty_splits(of_percents(*percents))) == expected


@pytest.mark.parametrize("count", [3, 4, 10, 19])
def test_below_twenty_contents_one_is_for_testing_and_one_for_validation(count):
    for trial in range(50):
        splits = nonempty_splits(of_numbers(range(trial * count, trial * count + count)))
        assert {split: len(files) for split, files in splits.items()} == {
            "train": count - 2,
            "validation": 1,
            "test": 1,
        }


@pytest.mark.parametrize("count", [20, 35, 99, 200])
def test_no_held_out_split_is_empty_or_has_more_than_a_tenth(count):
    for trial in range(50):
        splits = nonempty_splits(of_numbers(range(trial * count, trial * count + count)))
        assert sum(len(files) for files in splits.values()) == count
        assert all(1 <= len(splits[split]) <= count // 10 for split in ("validation", "test"))


def test_in_a_large_folder_only_the_hash_decides():
    files = of_numbers(range(1000))
    assert nonempty_splits(files) == split_by_hash(files)


def test_splits_do_not_depend_on_names_and_order():
    there, back = members(of_numbers(range(12))), members(of_numbers(reversed(range(12))))
    assert there == back


def test_equal_files_are_in_one_split_and_count_once():
    splits = nonempty_splits(of_numbers([1, 2, 3] * 10))
    assert [len(splits[split]) for split in SPLITS] == [10, 10, 10]
    assert all(len({file.digest for file in files}) == 1 for files in splits.values())


@pytest.mark.parametrize("count, most", [(4, 2), (19, 2), (20, 2), (50, 2), (1000, 0)])
def test_one_file_more_moves_few_others(count, most):
    before = members(of_numbers(range(count)))
    for number in range(count, count + 50):
        after = members(of_numbers([*range(count), number]))
        assert sum(after[digest] != split for digest, split in before.items()) <= most


def test_fewer_than_three_contents_are_an_error():
    with pytest.raises(
        ValueError, match=r"`files` must have at least 3 different contents. Received: files of 2 contents."
    ):
        nonempty_splits(of_numbers([1, 2, 2]))


def test_names_are_sorted_and_relative_with_slashes(tmp_path):
    (tmp_path / "z.txt").write_text("z")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("a")
    assert [file.name for file in listed(tmp_path)] == ["b/a.txt", "z.txt"]


def test_blank_files_are_left_out(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    (tmp_path / "b.txt").write_text("")
    assert listed(tmp_path) == []


def test_a_file_that_is_not_utf8_is_an_error_that_names_it(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"`path` must hold UTF-8 text. Received: .*latin.txt, invalid at byte 3."):
        listed(tmp_path)
    assert listed(tmp_path, skip_invalid=True) == []


def test_the_fingerprint_changes_with_a_name_and_with_a_content(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = fingerprint_files({"train": listed(tmp_path)})
    assert fingerprint_files({"train": listed(tmp_path)}) == first
    moved = fingerprint_files({"test": listed(tmp_path)})
    file.write_text("two")
    second = fingerprint_files({"train": listed(tmp_path)})
    file.rename(tmp_path / "b.txt")
    assert len({first, moved, second, fingerprint_files({"train": listed(tmp_path)})}) == 4


@pytest.mark.parametrize("content", [b"a" * 9 + b"\xff", "aé€😀".encode() * 3, "é".encode()[:1], b"", b"\xe2\x82("])
@pytest.mark.parametrize("block", [1, 2, 1000])
def test_a_scan_does_not_depend_on_the_block_size(content, block, tmp_path, monkeypatch):
    monkeypatch.setattr(file_splits, "BLOCK", block)
    (tmp_path / "a").write_bytes(content)
    try:
        content.decode()
        invalid = None
    except UnicodeDecodeError as error:
        invalid = error.start
    assert scan_file(tmp_path / "a") == (content_digest(content), len(content), not content, invalid)


def test_a_file_is_hashed_again_only_after_a_change(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = file_fingerprint(file)
    file.write_text("two")  # of the same size, and maybe at the same time
    second = file_fingerprint(file)
    assert first != second
    os.utime(file, (1, 1))
    assert file_fingerprint(file) == second
    monkeypatch.setattr("hashlib.file_digest", None)
    assert file_fingerprint(file) == second


def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (file,) = listed(tmp_path)
    assert file.read() == b"one"
    (tmp_path / "a.txt").write_text("two")
    with pytest.raises(ValueError, match=r"`path` must not change while it is being read. Received: changed file .*a"):
        file.read()


@pytest.fixture
def written(tmp_path):
    def write(*names):
        for name in names:
            path = tmp_path / "texts" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"text {name}")
        return tmp_path / "texts"

    return write


def test_warnings_name_missing_splits_and_files_outside_of_splits(written, tmp_path, caplog):
    path = written("train/a.txt", "train/b.txt", "valid/c.txt", "readme.txt", ".git/d.txt")
    source = open_source(path=path, data_dir=tmp_path)
    assert source.splits == ("train",)
    assert caplog.messages == [
        f"{path} has a folder for train only: there is no split validation or test.",
        f"2 of the files in {path} are left out (not in train), such as readme.txt.",
    ]
    open_source(path=path, data_dir=tmp_path)
    assert len(caplog.messages) == 2


def test_a_warning_names_files_that_the_pattern_leaves_out(written, tmp_path, caplog):
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
def test_no_warning_if_all_files_are_read(pattern, names, written, tmp_path, caplog):
    open_source(path=written(*names), pattern=pattern, data_dir=tmp_path)
    assert not caplog.messages


def test_folders_of_audio_have_the_same_warnings(written, tmp_path, caplog):
    path = written("train/a.wav", "train/a.flac", "b.wav")
    assert open_audio(path=path, data_dir=tmp_path).splits == ("train",)
    assert [message.partition(f"{path} ")[2] for message in caplog.messages] == [
        "has a folder for train only: there is no split validation or test.",
        "are left out (not in train), such as b.wav.",
        "are left out (not .wav), such as train/a.flac.",
    ]


def test_a_warning_names_missing_splits_of_speech(written, tmp_path, caplog):
    path = written("train/a.wav", "train/a.txt", "test/b.wav", "test/b.txt")
    assert open_speech(path=path, data_dir=tmp_path).splits == ("train", "test")
    assert caplog.messages == [f"{path} has a folder for train, test only: there is no split validation."]


def test_no_warning_for_folders_and_hidden_files(written, tmp_path, caplog):
    open_source(path=written("a.txt", "b.txt", "c.txt", "deep/.d.md"), data_dir=tmp_path)
    assert not caplog.messages
