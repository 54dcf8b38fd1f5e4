"""Batches of pairs: each pair occurs once per epoch."""

import collections

import numpy as np
import pytest

from tests.data.memory import ListSource, elements
from tf_sparse_attention.data import ByteTokenizer, PairBuckets, open_token_store

SIZES = np.random.default_rng(0).integers(1, 250, 40)
SOURCES = ["s" * size + f"{number:03}" for number, size in enumerate(SIZES)] + ["s" * 300]
TARGETS = [f"{number:03}" + "t" * (size // 2) for number, size in enumerate(SIZES)] + ["t"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return [
        open_token_store(ListSource(texts, folder, f"texts_{name}"), ByteTokenizer(), "train")
        for name, texts in (("source", SOURCES), ("target", TARGETS))
    ]


def texts_of(ids):
    return [ByteTokenizer().detokenize(row[row > 1]) for row in np.asarray(ids)]


def pairs_of(batches):
    """Return the texts of all non-empty rows, and check each batch."""
    found = []
    for inputs, targets, weights in batches:
        assert inputs["encoder_token_ids"].shape == targets.shape
        shifted = np.pad(targets, [(0, 0), (1, 0)])[:, :-1]
        np.testing.assert_array_equal(inputs["decoder_token_ids"], np.where(targets > 0, shifted, 0))
        np.testing.assert_array_equal(weights, targets > 0)
        np.testing.assert_array_equal(inputs["decoder_padding_mask"], targets > 0)
        np.testing.assert_array_equal(inputs["encoder_padding_mask"], inputs["encoder_token_ids"] > 0)
        for row in (inputs["encoder_token_ids"], targets):  # each document with its end
            assert (np.sum(np.asarray(row) == 1, axis=1) == np.any(np.asarray(row) > 0, axis=1)).all()
        rows = np.any(targets > 0, axis=1)
        found += zip(texts_of(inputs["encoder_token_ids"][rows]), texts_of(targets[rows]), strict=True)
    return found


def test_an_epoch_has_each_pair_once_and_the_next_another_order(stores):
    batches = PairBuckets(*stores, batch_size=2, max_length=256).training_batches(seed=3)
    count = batches.steps_per_epoch
    epochs = [elements(batches, number * count, (number + 1) * count) for number in (0, 1)]
    expected = sorted(zip(SOURCES[:-1], TARGETS[:-1], strict=True))
    found = [pairs_of(epoch) for epoch in epochs]
    assert sorted(found[0]) == sorted(found[1]) == expected and found[0] != found[1]
    shapes = collections.Counter(batch[1].shape for batch in epochs[0])
    assert set(shapes) == {(2, 256), (4, 128), (8, 64)}
    longest = max(len(source) for source in SOURCES[:-1])
    assert longest > 200


def test_an_evaluation_has_each_pair_once(stores):
    expected = sorted(zip(SOURCES[:-1], TARGETS[:-1], strict=True))
    buckets = PairBuckets(*stores, batch_size=2, max_length=256)
    whole = elements(buckets.evaluation_batches())
    assert sorted(pairs_of(whole)) == expected
    emptied = elements(buckets.evaluation_batches(use_source=False))
    for (inputs, targets, _), (full, *_) in zip(emptied, whole, strict=True):
        exists = np.any(full["encoder_token_ids"] > 0, axis=1)
        np.testing.assert_array_equal(inputs["encoder_token_ids"][:, 0], exists)
        assert not inputs["encoder_token_ids"][:, 1:].any()
        assert targets.shape == full["encoder_token_ids"].shape


@pytest.mark.parametrize("use_source", [True, False])
def test_as_a_prefix_the_source_is_read_and_the_target_scored(stores, use_source):
    buckets, found = PairBuckets(*stores, batch_size=2, max_length=256, as_prefix=True), []
    for inputs, targets, weights in elements(buckets.evaluation_batches(use_source=use_source)):
        np.testing.assert_array_equal(targets > 0, weights > 0)
        ids = np.where(targets > 0, targets, np.pad(inputs["token_ids"][:, 1:], [(0, 0), (0, 1)]))
        np.testing.assert_array_equal(inputs["token_ids"][:, 1:], np.where(ids[:, 1:] > 0, ids[:, :-1], 0))
        np.testing.assert_array_equal(inputs["padding_mask"], ids > 0)
        assert not inputs["token_ids"][:, 0].any()
        for row, scored in zip(ids, weights > 0, strict=True):
            source, target = row[(row > 0) & ~scored], row[scored]
            assert len(source) == np.argmax(scored) and (np.diff(np.flatnonzero(scored)) == 1).all()
            if len(target):  # each document with its end
                assert source[-1] == target[-1] == 1
                found.append(tuple(ByteTokenizer().detokenize(side[:-1]) for side in (source, target)))
    fits = [len(source) + len(target) + 2 <= 256 for source, target in zip(SOURCES, TARGETS, strict=True)]
    assert buckets.is_too_long.tolist() == [not fit for fit in fits] and sum(fits) < 40
    pairs = zip(SOURCES, TARGETS, fits, strict=True)
    assert sorted(found) == sorted((source if use_source else "", target) for source, target, fit in pairs if fit)


def test_long_pairs_are_left_out_and_empty_texts_are_kept(stores, tmp_path, caplog):
    with caplog.at_level("INFO"):
        buckets = PairBuckets(*stores, 2, 256)
    assert np.flatnonzero(buckets.is_too_long).tolist() == [40]
    assert "1 of 41 pairs are left out" in caplog.text and "3 shapes" in caplog.text
    texts = {"source": ["a", "", "c", ""], "target": ["x", "y", "", ""]}
    sources = [ListSource(each, tmp_path, name) for name, each in texts.items()]
    buckets = PairBuckets(*(open_token_store(source, ByteTokenizer(), "train") for source in sources), 2, 256)
    assert buckets.num_empty == {"source": 2, "target": 2} and not buckets.is_too_long.any()
    assert "2 of 4 pairs have an empty source" in caplog.text and "2 of 4 pairs have an empty target" in caplog.text
    assert sorted(pairs_of(elements(buckets.evaluation_batches()))) == [("", ""), ("", "y"), ("a", "x"), ("c", "")]


def test_invalid_arguments_are_errors(stores, tmp_path):
    for name, sizes in (("max_length", (2, 2)), ("batch_size", (0, 256))):
        with pytest.raises(ValueError, match=f"`{name}`"):
            PairBuckets(*stores, *sizes)
    with pytest.raises(ValueError, match="`seed`"):
        PairBuckets(*stores, 2, 256).training_batches(seed=-1)
    short = open_token_store(ListSource(["a"], tmp_path), ByteTokenizer(), "train")
    with pytest.raises(ValueError, match="`source` and `target`"):
        PairBuckets(stores[0], short, 2, 256)
