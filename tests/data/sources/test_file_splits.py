"""Files are listed, hashed and split by their content, with warnings about files that are left out."""

import os
import pathlib

import pytest

from tf_sparse_attention.data import open_audio, open_source, open_speech
from tf_sparse_attention.data.sources import file_splits
from tf_sparse_attention.data.sources.file_splits import (
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


def test_the_split_of_a_content_never_changes():
    assert [assign_split(content_digest(text)) for text in (b"0", b"7", b"10")] == ["train", "train", "validation"]
    assert assign_split("0" * 32) == "train"
    assert assign_split(f"{89:016x}" + "f" * 16) == "train"
    assert assign_split(f"{90:016x}" + "0" * 16) == "validation"
    assert assign_split(f"{94:016x}" + "0" * 16) == "validation"
    assert assign_split(f"{195:016x}" + "0" * 16) == "test"


def test_the_highest_hashes_are_held_out(subtests):
    for percents, expected in [
        ((10, 30, 20), {"train": [0], "validation": [2], "test": [1]}),  # none beyond a border: the nearest to it
        ((97, 98, 99), {"train": [0], "validation": [1], "test": [2]}),  # all beyond it: the shares hold
        ((92, 10, 50, 91), {"train": [1, 2], "validation": [3], "test": [0]}),
        ((92, 10, 50, 96), {"train": [1, 2], "validation": [0], "test": [3]}),  # as the hash says
        ((99, 10, 50, 96), {"train": [1, 2], "validation": [3], "test": [0]}),
    ]:
        with subtests.test(percents=percents):
            assert names(nonempty_splits(of_percents(*percents))) == expected
    with pytest.raises(ValueError, match="`files`"):
        nonempty_splits(of_numbers([1, 2, 2]))


def test_no_held_out_split_is_empty_or_has_more_than_a_tenth(subtests):
    for count in (3, 4, 10, 19, 20, 35, 99, 200):
        most = max(1, count // 10)
        with subtests.test(count=count):
            for trial in range(50 if count < 99 else 10):
                splits = nonempty_splits(of_numbers(range(trial * count, trial * count + count)))
                assert sum(len(files) for files in splits.values()) == count
                assert all(1 <= len(splits[split]) <= most for split in ("validation", "test"))
    files = of_numbers(range(1000))
    assert nonempty_splits(files) == split_by_hash(files)  # in a large folder, only the hash decides


def test_one_file_more_moves_few_others(subtests):
    for count, most in [(4, 2), (19, 2), (20, 2), (50, 2), (1000, 0)]:
        with subtests.test(count=count):
            before = members(of_numbers(range(count)))
            assert members(of_numbers(reversed(range(count)))) == before
            for number in range(count, count + (50 if count < 1000 else 5)):
                after = members(of_numbers([*range(count), number]))
                assert sum(after[digest] != split for digest, split in before.items()) <= most


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


def test_a_scan_does_not_depend_on_the_block_size(tmp_path, monkeypatch, subtests):
    for content in (b"a" * 9 + b"\xff", "aé€😀".encode() * 3, "é".encode()[:1], b"", b"\xe2\x82(", b" \n", b"a \n"):
        (tmp_path / "a").write_bytes(content)
        try:
            content.decode()
            invalid = None
        except UnicodeDecodeError as error:
            invalid = error.start
        for block in (1, 2, 1000):
            monkeypatch.setattr(file_splits, "BLOCK", block)
            with subtests.test(content=content, block=block):
                assert scan_file(tmp_path / "a") == (
                    content_digest(content),
                    len(content),
                    not content.strip(),
                    invalid,
                )


def test_warnings_name_missing_splits_and_files_that_are_left_out(tmp_path, caplog, subtests):
    three, one_split = ("a.txt", "b.txt", "c.txt"), "has a folder for train only: there is no split validation or test."
    left_out = "are left out (not {}), such as {}."
    for number, (open_folder, options, files, warnings) in enumerate(
        [
            (
                open_source,
                {},
                ("train/a.txt", "b.txt", ".git/d.txt"),
                [one_split, left_out.format("in train", "b.txt")],
            ),
            (open_source, {}, (*three, "deep/d.md"), [left_out.format("named **/*.txt", "deep/d.md")]),
            (open_source, {}, (*three, "deep/.d.md", ".hidden.md"), []),
            (open_source, {}, ("train/a.txt", "validation/b.txt", "test/c.txt"), []),
            (open_source, {"pattern": "*.txt"}, (*three, "deep/d.md"), []),
            (open_audio, {}, ("train/a.wav", "train/a.flac"), [one_split, left_out.format(".wav", "train/a.flac")]),
            (open_speech, {}, ("train/a.wav", "train/a.txt"), [one_split]),
        ]
    ):
        path = tmp_path / str(number)
        for name in files:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(f"text {name}")
        caplog.clear()
        with subtests.test(opener=open_folder.__name__, files=files):
            for _ in range(2):  # each warning is logged once
                open_folder(path=path, data_dir=tmp_path, **options)
            assert [message.partition(f"{path} ")[2] for message in caplog.messages] == warnings
