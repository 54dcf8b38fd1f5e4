"""Splits, parts and sums of readers, and invalid examples."""

import pytest
import tensorflow_datasets as tfds

from tf_sparse_attention.data.sources.readers import ListReader

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
