"""Kinds of heads on images in equal time: `python -m benchmarks.images`."""

import argparse
import itertools
import types

import numpy as np

from benchmarks import images
from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.trainers.configs import images as configs

ROW = {"bits_per_dim": 4.0, "training_bits": 3.5, "weights": 1000, "steps": 50, "seconds": 10.0}


def test_a_row_of_the_table_is_a_variant_with_the_spread_of_its_seeds():
    rows = [{**ROW, "variant": "local", "seed": 0}, {**ROW, "variant": "local", "seed": 1, "bits_per_dim": 4.1}]
    assert images.table(rows).splitlines()[2:] == ["| local | 4.050 (0.100) | 3.500 | 1,000 | 50 | 10 | 2 |"]


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
