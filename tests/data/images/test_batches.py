"""Batches of images: pure functions of seed and step, and each byte once in an evaluation."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import ImageBatches, ImageCodec, image_evaluation_batches

CODEC = ImageCodec(4, 6, 3, "blocks", (2, 3))
IMAGES = np.random.default_rng(0).integers(256, size=(10, 4, 6, 3), dtype=np.uint8)


def arrays(dataset):
    return [tf.nest.map_structure(np.asarray, batch) for batch in dataset]


def images_of(batches, codec=CODEC):
    """The images of all rows that have some, with the checks that every batch has to pass."""
    found = []
    for inputs, targets, weights in batches:
        assert set(inputs) == {"token_ids"} and targets.dtype == inputs["token_ids"].dtype == np.int32
        np.testing.assert_array_equal(inputs["token_ids"], np.pad(targets, [(0, 0), (1, 0)])[:, :-1])
        np.testing.assert_array_equal(weights, targets > 0)
        is_image = weights.any(axis=1)
        assert weights[is_image].all()
        found += [image.tobytes() for image in codec.decode(targets[is_image])]
    return found


def test_an_epoch_has_each_image_once_and_the_next_another_order():
    batches = ImageBatches(IMAGES, CODEC, batch_size=5, seed=3)
    assert batches.steps_per_epoch == 2
    first, second = (images_of(arrays(batches.dataset(start, 2))) for start in (0, 2))
    assert sorted(first) == sorted(second) == sorted(image.tobytes() for image in IMAGES) and first != second


@pytest.mark.parametrize("use_flips", [False, True])
def test_a_step_is_the_same_wherever_the_data_set_begins(use_flips):
    make = lambda seed=0: ImageBatches(IMAGES, CODEC, batch_size=4, seed=seed, use_flips=use_flips)  # noqa: E731
    whole = arrays(make().dataset(0, 9))
    for start in (4, 8):
        (one,) = arrays(make().dataset(start, 1))
        tf.nest.map_structure(np.testing.assert_array_equal, one, whole[start])
    assert images_of(arrays(make(seed=1).dataset(0, 9))) != images_of(whole)


def test_half_of_the_images_are_mirrored_where_that_is_wanted():
    kinds = {image.tobytes(): "own" for image in IMAGES}
    kinds |= {image[:, ::-1].tobytes(): "mirrored" for image in IMAGES}
    found = images_of(arrays(ImageBatches(IMAGES, CODEC, 10, use_flips=True).dataset(0, 30)))
    counts = collections.Counter(kinds[image] for image in found)
    assert sum(counts.values()) == 300 and 100 < counts["mirrored"] < 200
    plain = images_of(arrays(ImageBatches(IMAGES, CODEC, 10).dataset(0, 3)))
    assert {kinds[image] for image in plain} == {"own"}


@pytest.mark.parametrize(("num_shards", "num_parts"), [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_divided_batches_are_those_of_one(kind, num_shards, num_parts):
    def make(**shard):
        if kind == "training":
            return ImageBatches(IMAGES, CODEC, 4, use_flips=True).dataset(3, 2, **shard)
        return image_evaluation_batches(IMAGES, CODEC, 4, first_batch=1, **shard)

    whole = arrays(make())
    parts = [arrays(make(num_shards=num_shards, shard_index=shard, num_parts=num_parts)) for shard in range(num_shards)]
    for step, (_, targets, _) in enumerate(whole):
        rows = [part[step * num_parts + number][1] for part in parts for number in range(num_parts)]
        np.testing.assert_array_equal(np.concatenate(rows), targets)


def test_an_evaluation_has_each_byte_once_also_when_resumed():
    expected = [image.tobytes() for image in IMAGES]
    whole = arrays(image_evaluation_batches(IMAGES, CODEC, batch_size=4))
    assert images_of(whole) == expected
    assert sum(weights.sum() for *_, weights in whole) == IMAGES.size
    parts = [image_evaluation_batches(IMAGES, CODEC, 4, first_batch=first, num_batches=count) for first, count in
             ((0, 1), (1, None))]  # fmt: skip
    assert [image for part in parts for image in images_of(arrays(part))] == expected
    assert images_of(arrays(image_evaluation_batches(IMAGES, CODEC, 4, max_images=5))) == expected[::2]
    assert not arrays(image_evaluation_batches(IMAGES, CODEC, 4, first_batch=9))


def test_what_does_not_fit_is_refused():
    for arguments, message in [
        (
            (IMAGES, ImageCodec(6, 4), 2),
            r"`images` must be uint8 .*\(6, 4, 3\), that of `codec`\. Received: uint8 of sh",
        ),
        ((IMAGES.astype("float32"), CODEC, 2), r"Received: float32 of shape \(10, 4, 6, 3\)"),
        ((IMAGES[:0], CODEC, 2), r"one or more.*Received: uint8 of shape \(0, 4, 6, 3\)"),
        ((IMAGES, CODEC, 0), r"`batch_size` must be a positive integer"),
        ((IMAGES, CODEC, 2, -1), r"`seed` must be in \[0, 2\*\*63\)\. Received: seed=-1\."),
        ((IMAGES, CODEC, 2, 0, 1), r"`use_flips` must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            ImageBatches(*arguments)
    with pytest.raises(ValueError, match=r"`max_images` must be"):
        image_evaluation_batches(IMAGES, CODEC, 2, max_images=0)
