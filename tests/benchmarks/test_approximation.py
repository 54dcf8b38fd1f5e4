"""Clustered attention in place of the dense attention of a trained classifier, and passages of books."""

import json

import keras
import numpy as np
import pytest

from benchmarks import approximation, passages
from tf_sparse_attention.models import Backbone, SequenceClassifier

DENSE = {"layer": "DenseAttention", "num_heads": 2, "key_dim": 4, "position": "rotary"}
T = 12


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    model = SequenceClassifier(Backbone(20, 2, 8, [DENSE], 12, causal=False, seed=0), 3)
    for weight in model.trainable_weights:  # so that a weight that is not taken over shows
        weight.assign(np.random.default_rng(len(weight.path)).standard_normal(weight.shape) * 0.5)
    return model


def logits_of(model):
    ids = np.random.default_rng(1).integers(2, 20, (2, T)).astype("int32")
    return keras.ops.convert_to_numpy(model({"token_ids": ids, "padding_mask": np.arange(T) < [[T], [7]]}))


def test_with_the_best_keys_of_all_nothing_changes_and_with_few_clusters_something_does(model):
    exact = logits_of(model)
    for arguments, is_same in (({"num_clusters": 2, "top_k": T}, True), ({"num_clusters": 2}, False)):
        found = logits_of(approximation.with_attention(model, **arguments))
        assert np.allclose(found, exact, atol=1e-4) == is_same


@pytest.mark.full
def test_the_table_has_a_row_of_each_kind_of_attention(model):
    ids, mask = np.ones((2, T), np.int32), np.ones((2, T), bool)
    batches = [(ids, mask, np.array([0, 1]), np.array([1.0, 0.0]))]
    rows = list(approximation.rows_of_table(model, batches, [2], 4))
    assert [row[0] for row in rows] == ["dense", "clustered, 2 clusters", "improved, 2 clusters"]
    assert {row[1] for row in rows} <= {"0.0000", "1.0000"} and rows[0][3] == "1.0000"
    (row, *_) = approximation.times_of_lengths(model, [T, 2 * T], [2], 4)
    assert row[0] == "dense" and len(row) == 3


def test_passages_are_in_order_of_whole_characters_and_do_not_overlap(tmp_path):
    text = "".join(chr(0x100 + number) for number in range(1000))  # of two bytes each
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    counts = passages.write(str(tmp_path), str(tmp_path / "out" / "passages.jsonl"), size=31, count=20)
    assert counts == {"train": 16, "validation": 2, "test": 2}
    lines = [json.loads(line) for line in (tmp_path / "out" / "passages.jsonl").read_text().splitlines()]
    assert {line["label"] for line in lines} == {"one"} and [line["split"] for line in lines][-2:] == ["test"] * 2
    places = [text.index(line["text"]) for line in lines]
    assert all(len(line["text"]) == 15 for line in lines) and np.diff(places).min() >= 16
    with pytest.raises(ValueError, match=r"`books` must be a folder of files NAME\.txt\. Received: books=nowhere"):
        passages.write("nowhere", str(tmp_path / "x.jsonl"), 31, 20)
