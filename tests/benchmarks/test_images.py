"""Kinds of heads on images in equal time: `python -m benchmarks.images`."""

import argparse
import itertools
import json
import types

import numpy as np
import pytest

from benchmarks import images
from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.trainers.configs import images as configs

ROW = {"bits_per_dim": 4.0, "training_bits": 3.5, "weights": 1000, "steps": 50, "seconds": 10.0}


def test_a_row_of_the_table_is_a_variant_with_the_spread_of_its_seeds():
    rows = [{**ROW, "variant": "local", "seed": 0}, {**ROW, "variant": "local", "seed": 1, "bits_per_dim": 4.1}]
    assert images.table(rows).splitlines()[2:] == ["| local | 4.050 (0.100) | 3.500 | 1,000 | 50 | 10 | 2 |"]


def test_batches_have_each_image_once_an_epoch_as_it_is_or_mirrored():
    pictures = np.zeros((4, 2, 2, 3), np.uint8)
    pictures[:, :, 0] = np.arange(1, 5)[:, None, None]
    batches, codec = images.endless(pictures, ImageCodec(2, 2), 2, seed=0), ImageCodec(2, 2)
    drawn = np.concatenate([codec.decode(next(batches)[1]) for _ in range(4)])
    for epoch in (drawn[:4], drawn[4:]):
        assert sorted(epoch.max(axis=(1, 2, 3))) == [1, 2, 3, 4]
    assert {bool(image[0, 0, 0]) for image in drawn} == {True, False}  # mirrored ones begin with 0


def test_the_model_reads_the_byte_before():
    inputs, targets = images.in_and_out(np.array([[5, 6, 7]]))
    assert inputs["token_ids"].tolist() == [[0, 5, 6]] and targets.tolist() == [[5, 6, 7]]


def test_a_file_without_other_images_is_an_error(tmp_path):
    np.savez(tmp_path / "images.npz", x_train=np.zeros((1, 2, 2, 3), np.uint8))
    with pytest.raises(
        ValueError, match=r"`path` must have an array x_heldout or x_test\. Received: .*images\.npz without any"
    ):
        images.read_images(str(tmp_path / "images.npz"))


def test_a_run_that_is_done_is_not_done_again(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "images.npz", **dict.fromkeys(("x_train", "x_test"), np.zeros((1, 2, 2, 3), np.uint8)))
    trained = []

    def train(variant, seed, data, options):
        trained.append((variant, seed))
        return {**ROW, "variant": variant, "seed": seed}

    monkeypatch.setattr(images, "train", train)
    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps({**ROW, "variant": "local", "seed": 0}) + "\n")
    arguments = [f"--path={tmp_path / 'images.npz'}", f"--results={results}", "--variants", "local", "strided"]
    images.main(arguments)
    assert trained == [("strided", 0), ("local", 1), ("strided", 1)]
    assert len(results.read_text().splitlines()) == 4 and "| strided | 4.000 (0.000) |" in capsys.readouterr().out


class Recorder:
    """Stands for a model, and keeps the first batches that it is given."""

    def compile(self, optimizer, loss):
        self.given = []

    def fit(self, batches, shuffle, **options):
        assert not shuffle
        for inputs, targets in itertools.islice(batches, 5):
            self.given += [inputs["token_ids"], targets]
        return types.SimpleNamespace(history={"loss": [1.0]})

    def evaluate(self, inputs, targets, **options):
        self.given += [inputs["token_ids"], targets]
        return 1.0

    def count_params(self):
        return 0


def test_all_variants_see_the_same_images_in_the_same_order(monkeypatch):
    draw, models = np.random.default_rng(0), []
    data = {name: draw.integers(256, size=(4, 2, 2, 3), dtype=np.uint8) for name in ("train", "other")}

    def make_model(config, vocabulary_size):
        models.append(Recorder())
        return models[-1]

    monkeypatch.setattr(images.components, "make_model", make_model)
    options = argparse.Namespace(batch_size=3, dtype="float32", seconds=1.0)
    for number, variant in enumerate([*configs.VARIANTS, next(iter(configs.VARIANTS))]):
        seed = int(number == len(configs.VARIANTS))
        images.train(variant, seed, data, options)
    first, *others, of_another_seed = (np.concatenate(model.given) for model in models)
    assert len(others) > 1 and all(np.array_equal(first, other) for other in others)
    assert not np.array_equal(first, of_another_seed)
    np.testing.assert_array_equal(ImageCodec(2, 2).decode(first[-4:]), data["other"])


@pytest.mark.full
def test_a_variant_is_trained_for_its_time(tmp_path, capsys):
    draw = np.random.default_rng(0)
    pictures = {name: draw.integers(256, size=(2, 32, 32, 3), dtype=np.uint8) for name in ("x_train", "x_test")}
    np.savez(tmp_path / "images.npz", **pictures)
    images.main([f"--path={tmp_path / 'images.npz'}", "--seconds=1", "--seeds=0", "--variants=strided"])
    said = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert said["steps"] >= images.ROUND and 0 < said["bits_per_dim"] < 20
