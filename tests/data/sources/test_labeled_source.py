"""Texts with labels from JSON lines and TFDS, and their batches."""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data.builders import register
from tf_sparse_attention.data import ByteTokenizer, LabeledBuckets, open_labeled, open_token_store

LINES = [
    {"text": "good", "title": "a", "label": "yes", "split": "train"},
    {"text": "bad", "title": "b", "label": "no", "split": "train"},
    {"text": "x" * 300, "title": "c", "label": "no", "split": "train"},
    {"text": "fine", "title": "d", "label": "perhaps", "split": "test"},
]


@pytest.fixture
def opened(tmp_path):

    def write(lines=LINES, **options):
        (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        return open_labeled(path=tmp_path / "texts.jsonl", data_dir=tmp_path, **options)

    return write


def test_lines_have_a_text_and_a_label_each(opened):
    source = opened()
    found = dict(zip(source.text.documents("train"), source.labels("train"), strict=True))
    assert found == {line["text"].encode(): line["label"] for line in LINES[:3]}
    assert source.classes("train") == ["no", "yes"]
    assert source.class_ids("train", ["yes", "no"]).tolist().count(1) == 2
    assert source.name.endswith("(text to label)")
    assert opened(label_feature="title", text_feature="text").fingerprint != source.fingerprint


def test_labels_may_be_whole_numbers_and_texts_without_a_label_are_counted(opened, caplog):
    assert opened([{**line, "label": number} for number, line in enumerate(LINES)]).classes("train") == ["0", "1", "2"]
    lines = [*LINES[:3], {"text": "a", "label": "", "split": "train"}, {"text": "b", "label": None, "split": "train"}]
    assert opened(lines).classes("train") == ["", "no", "yes"]
    assert "1 of 5 lines are left out because they lack one of text, label." in caplog.text
    assert "have the empty label ''" in caplog.text


# Like `imdb_reviews`, and with a test split without labels, like GLUE.
register(
    "Reviews",
    {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["neg", "pos"])},
    train=[{"text": f"{label} {number}", "label": label} for number, label in enumerate([0, 1, 1])],
    test=[{"text": "-1 0", "label": -1}],
)


@pytest.mark.filterwarnings("ignore")
def test_labels_of_tfds_are_names_of_classes(tmp_path):
    source = open_labeled(tfds="reviews", data_dir=tmp_path)
    found = dict(zip(source.text.documents("train"), source.labels("train"), strict=True))
    assert found == {b"0 0": "neg", b"1 1": "pos", b"1 2": "pos"}
    assert source.classes("train") == ["neg", "pos"] and source.name == "reviews/1.0.0 (text to label)"
    with pytest.raises(ValueError, match=r"`split` must have labels\. Received: split=test of reviews/1\.0\.0"):
        source.labels("test")
    with pytest.raises(ValueError, match=r"`label_feature` must be a feature with classes.*label_feature=text"):
        open_labeled(tfds="reviews", label_feature="text", data_dir=tmp_path)


def test_each_text_is_in_one_batch_with_its_class_and_long_ones_are_cut(opened):
    source = opened()
    store = open_token_store(source.text, ByteTokenizer(), "train")
    buckets = LabeledBuckets(store, source.class_ids("train", ["no", "yes"]), batch_size=2, max_length=128)
    assert buckets.num_cut == 1
    seen = []
    for batches in (buckets.evaluation_batches(), buckets.training_batches()):
        rows = []
        for inputs, classes, weights in batches.grain_dataset(stop=buckets.num_batches):
            assert inputs["token_ids"].shape[1] in (64, 128) and inputs["padding_mask"][:, 0].all()
            for ids, mask, place, weight in zip(*inputs.values(), classes, weights, strict=True):
                assert not ids[~mask].any() and ids[0] == 0
                if weight:
                    kept = ids[mask][1:].tolist()
                    rows.append((bytes(number - 2 for number in kept if number > 1), len(kept), int(place)))
        seen.append(sorted(rows))
    assert seen[0] == seen[1] == sorted([(b"good", 5, 1), (b"bad", 4, 0), (b"x" * 127, 127, 0)])
    some = LabeledBuckets(store, [0, 0, 0], 2, 128, chosen=[1])
    assert sum(float(weights.sum()) for _, _, weights in some.evaluation_batches().grain_dataset()) == 1


def test_invalid_arguments_and_labels_are_errors(opened, tmp_path, subtests):
    for name, options in [
        ("`tfds` and `path`", {}),
        ("`path`", {"path": tmp_path / "a.txt"}),
        ("`text_feature` and `label_feature`", {"path": "a.jsonl", "text_feature": "label"}),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=name):
            open_labeled(**options)
    with pytest.raises(ValueError, match=r"'no', 'yes'.*'perhaps'"):
        opened().class_ids("test", ["no", "yes"])
    with pytest.raises(ValueError, match="`classes`"):
        LabeledBuckets(open_token_store(opened().text, ByteTokenizer(), "train"), np.zeros(2), 2, 128)
    with pytest.raises(ValueError, match=r"'label' of texts\.jsonl, line 1: float"):
        opened([{"text": "a", "label": 0.5}]).labels("train")
