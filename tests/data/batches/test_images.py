"""Batches of images: pure functions of seed and step. Evaluation scores each byte once."""

import collections

import numpy as np
import pytest

from tf_sparse_attention.data import ImageCodec, image_batches, image_evaluation_batches

CODEC = ImageCodec(4, 6, 3, "blocks", (2, 3))
IMAGES = np.random.default_rng(0).integers(256, size=(10, 4, 6, 3), dtype=np.uint8)


def elements(batches, start=0, stop=None):
    return [batches[number] for number in range(start, batches.num_batches if stop is None else stop)]


def images_of(batches, codec=CODEC):
    """Return the images of all non-empty rows, and check each batch."""
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
    batches = image_batches(IMAGES, CODEC, batch_size=5, seed=3)
    assert batches.steps_per_epoch == 2
    first, second = (images_of(elements(batches, start, start + 2)) for start in (0, 2))
    assert sorted(first) == sorted(second) == sorted(image.tobytes() for image in IMAGES) and first != second


def test_flips_mirror_half_of_the_images():
    kinds = {image.tobytes(): "own" for image in IMAGES}
    kinds |= {image[:, ::-1].tobytes(): "mirrored" for image in IMAGES}
    found = images_of(elements(image_batches(IMAGES, CODEC, 10, use_flips=True), stop=30))
    counts = collections.Counter(kinds[image] for image in found)
    assert sum(counts.values()) == 300 and 100 < counts["mirrored"] < 200
    plain = images_of(elements(image_batches(IMAGES, CODEC, 10), stop=3))
    assert {kinds[image] for image in plain} == {"own"}


def test_an_evaluation_has_each_byte_once():
    expected = [image.tobytes() for image in IMAGES]
    whole = elements(image_evaluation_batches(IMAGES, CODEC, batch_size=4))
    assert images_of(whole) == expected
    assert sum(weights.sum() for *_, weights in whole) == IMAGES.size
    assert images_of(elements(image_evaluation_batches(IMAGES, CODEC, 4, max_images=5))) == expected[::2]


def test_invalid_arguments_are_errors(subtests):
    for name, arguments in [
        ("images", (IMAGES, ImageCodec(6, 4), 2)),
        ("images", (IMAGES.astype("float32"), CODEC, 2)),
        ("images", (IMAGES[:0], CODEC, 2)),
        ("batch_size", (IMAGES, CODEC, 0)),
        ("seed", (IMAGES, CODEC, 2, -1)),
        ("use_flips", (IMAGES, CODEC, 2, 0, 1)),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            image_batches(*arguments)
    with pytest.raises(ValueError, match="`max_images`"):
        image_evaluation_batches(IMAGES, CODEC, 2, max_images=0)
