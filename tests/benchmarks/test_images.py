"""Kinds of heads on images in equal time: `python -m benchmarks.images`."""

import itertools

import numpy as np

from benchmarks import images
from tf_sparse_attention.data import ImageCodec


def test_the_order_of_images_depends_on_the_seed_and_every_epoch_has_each_once():
    codec = ImageCodec(2, 2)
    pictures = np.random.default_rng(0).integers(256, size=(4, 2, 2, 3), dtype=np.uint8)

    def drawn(seed):
        batches = itertools.islice(images.endless(pictures, codec, 2, seed), 6)
        return codec.decode(np.concatenate([ids for _, ids in batches]))

    np.testing.assert_array_equal(drawn(0), drawn(0))
    assert not np.array_equal(drawn(0), drawn(1))
    for epoch in drawn(0).reshape(3, 4, 2, 2, 3):
        found = [{(image == picture).all() for image in (one, one[:, ::-1])} for picture in pictures for one in epoch]
        assert sum(True in each for each in found) == 4
