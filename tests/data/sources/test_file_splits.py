"""Splits of files by their content, splits of readers, and warnings and errors about files."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tf_sparse_attention.data import open_audio, open_source, open_speech
from tf_sparse_attention.data.sources import file_splits
from tf_sparse_attention.data.sources.array_file import ArraySpec, read_arrays
from tf_sparse_attention.data.sources.file_splits import assign_split, content_digest, file_fingerprint, nonempty_splits
from tf_sparse_attention.data.sources.readers import ListReader


def made(*digests):
    return [file_splits.DataFile(str(at), pathlib.Path(str(at)), digest) for at, digest in enumerate(digests)]


def of_numbers(numbers):
    return made(*(content_digest(str(number).encode()) for number in numbers))


def test_the_split_of_a_content_never_changes():
    assert [assign_split(content_digest(text)) for text in (b"0", b"7", b"10")] == ["train", "train", "validation"]
    digests = ["0" * 32, f"{89:016x}" + "f" * 16, *(f"{percent:016x}" + "0" * 16 for percent in (90, 94, 195))]
    assert list(map(assign_split, digests)) == ["train", "train", "validation", "validation", "test"]


def test_the_highest_hashes_are_held_out(subtests):
    for percents, expected in [
        ((10, 30, 20), {"train": [0], "validation": [2], "test": [1]}),  # none beyond a border: the nearest to it
        ((97, 98, 99), {"train": [0], "validation": [1], "test": [2]}),  # all beyond it: the shares hold
        ((92, 10, 50, 91), {"train": [1, 2], "validation": [3], "test": [0]}),
        ((92, 10, 50, 96), {"train": [1, 2], "validation": [0], "test": [3]}),  # as the hash says
        ((99, 10, 50, 96), {"train": [1, 2], "validation": [3], "test": [0]}),
    ]:
        with subtests.test(percents=percents):
            digests = (f"{percent:016x}{number:016x}" for number, percent in enumerate(percents))
            splits = nonempty_splits(made(*digests))
            assert {split: [int(file.name) for file in files] for split, files in splits.items()} == expected
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
    by_hash = {split: [file for file in files if assign_split(file.digest) == split] for split in file_splits.SPLITS}
    assert nonempty_splits(files) == by_hash  # in a large folder, only the hash decides


def splits_of(numbers):
    return {file.digest: split for split, part in nonempty_splits(of_numbers(numbers)).items() for file in part}


def test_one_file_more_moves_few_others(subtests):
    for count, most in [(4, 2), (19, 2), (20, 2), (50, 2), (1000, 0)]:
        with subtests.test(count=count):
            before = splits_of(range(count))
            assert splits_of(reversed(range(count))) == before
            for number in range(count, count + (50 if count < 1000 else 5)):
                after = splits_of([*range(count), number])
                assert sum(after[digest] != split for digest, split in before.items()) <= most


def test_the_fingerprint_changes_with_a_name_and_with_a_content(tmp_path):
    found = []
    for name, text in [("a", "one"), ("a", "one"), ("a", "two"), ("b", "two"), ("train/b", "two")]:
        path = tmp_path / str(len(found)) / "books" / f"{name}.txt"
        path.parent.mkdir(parents=True)
        path.write_text(text * 40)
        found.append(open_source(path=tmp_path / str(len(found)) / "books", data_dir=tmp_path).fingerprint)
    assert found[0] == found[1] and len(set(found)) == 4


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
                found = file_splits.scan_file(tmp_path / "a")
                assert found == (content_digest(content), len(content), not content.strip(), invalid)


def test_warnings_name_missing_splits_and_files_that_are_left_out(tmp_path, caplog, subtests):
    three, one_split = ("a.txt", "b.txt", "c.txt"), "has a folder for train only: there is no split validation or test."
    left_out = "are left out (not {}), such as {}."
    for number, (open_folder, options, files, warnings) in enumerate(
        [
            (open_source, {}, ("train/a.txt", "b.txt", ".git/d"), [one_split, left_out.format("in train", "b.txt")]),
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


SPLITS = {"train": range(13), "test": range(100, 103), "empty": ()}


@pytest.fixture
def reader():
    return ListReader("numbers", "numbers#1", SPLITS, lambda number: {"number": number})


def numbers(reader, split):
    return [example["number"] for example in reader.examples(split)]


PARTS = [
    *("train", "train[:50%]", "train[50%:]", "train[33%:67%]", "train[-10%:]", "train[:12.5%]", "train[100%:]"),
    *("train[3:5]", "train[-2:]", "train[:-2]", "train[5:3]", "train[:13]", "train[-13:1]"),
    *("train+test", "test + train[:1]", "train[:2]+train[:2]"),
]


def test_parts_and_sums_are_those_of_tfds(reader, subtests):
    sizes = [
        tfds.core.SplitInfo(name=name, shard_lengths=[len(SPLITS[name])], num_bytes=0, filename_template=None)
        for name in ("train", "test")
    ]
    for split in PARTS:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute({info.name: info for info in sizes})
        expected = [number for part in parts for number in SPLITS[part.splitname][part.from_ : part.to]]
        with subtests.test(split=split):
            assert numbers(reader, split) == expected


def test_unknown_splits_and_parts_beyond_the_examples_are_errors(reader, subtests):
    assert reader.splits == ("train", "test")  # those with items
    for split in ("dev", "empty", "train[", "train[:x]", "train[1]", "train+", "", "train[:5]+dev"):
        with subtests.test(split=split), pytest.raises(ValueError, match="`split` must be one of train, test"):
            reader.examples(split)  # at once, before an example is read
    for split in ("train[:14]", "train[-14:]", "train[:110%]"):
        with subtests.test(split=split), pytest.raises(ValueError, match="`split` must have bounds of at most 13"):
            list(reader.examples(split))


@pytest.mark.parametrize("save", [np.savez_compressed, pytest.param(np.savez, marks=pytest.mark.full)])
def test_the_error_for_a_damaged_file_has_one_line(tmp_path, save):
    path, random = tmp_path / "a.npz", np.random.default_rng(0)
    save(path, sound=random.integers(100, size=400).astype("int16"))
    whole, damaged = path.read_bytes(), 0
    contents = [b"", b"no", whole[:-30], whole[: len(whole) // 2]]
    for place in random.integers(len(whole), size=100):
        contents.append(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    for content in contents:
        path.write_bytes(content)
        try:
            read_arrays(path, {"sound": ArraySpec("int16", "S")})  # a change of the stored time is not damage
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            damaged += 1
    assert damaged > 60
