"""Batches of recordings and images: each occurs once per epoch, and unusable recordings are counted."""

import collections
import itertools

import numpy as np
import pytest

from tests.data.memory import ListSource, elements
from tf_sparse_attention.data import (
    FeatureMasks,
    ImageCodec,
    SpeechBuckets,
    Utterance,
    image_batches,
    image_evaluation_batches,
    open_speech_store,
)

F = 4
rng = np.random.default_rng(0)
FRAMES = rng.integers(30, 790, 30)
UTTERANCES = [
    Utterance(f"u{number}", rng.normal(size=(frames, F)).astype("float32") + number, list("ab c"[: 1 + number % 4]))
    for number, frames in enumerate(FRAMES)
]
ODD = [
    Utterance("empty", np.ones((300, F), "float32"), []),
    Utterance("crowded", np.ones((12, F), "float32"), list("aab")),  # 3 frames of 4, where it needs 4
    Utterance("long", np.ones((900, F), "float32"), list("ab")),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_speech_store(ListSource(UTTERANCES + ODD, tmp_path_factory.mktemp("stores")), "train")


def recordings_of(batches):
    """Return the recordings of all rows by number, and check each row."""
    found = []
    for inputs, labels, weights in batches:
        assert (weights == inputs["padding_mask"].any(axis=1)).all()
        for features, mask, ids in zip(inputs["features"][weights > 0], inputs["padding_mask"][weights > 0],
                                       labels[weights > 0], strict=True):  # fmt: skip
            number = round(float(features[mask].mean()))
            np.testing.assert_array_equal(features[mask], UTTERANCES[number].features)
            assert not features[~mask].any()
            assert ["_ abc"[label] for label in ids[ids > 0]] == UTTERANCES[number].transcript
            found.append(number)
    return found


def test_a_store_has_all_recordings_and_is_built_once(store, tmp_path):
    assert store.labels == (" ", "a", "b", "c") and store.num_utterances == 33
    for number in (0, 17):
        np.testing.assert_array_equal(store.features(number), UTTERANCES[number].features)
        assert store.transcript(store.label_ids(number)) == "".join(UTTERANCES[number].transcript)
    frames = np.concatenate([each.features for each in UTTERANCES + ODD])
    np.testing.assert_allclose(store.mean, frames.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(store.std, frames.std(axis=0), rtol=1e-4)
    source = ListSource([UTTERANCES[2], Utterance("new", np.ones((5, F), "float32"), list("ax"))], tmp_path)
    other = open_speech_store(source, "test", store.labels)
    assert other.labels == store.labels and other.has_unknown.tolist() == [False, True]
    source.items = []
    assert open_speech_store(source, "test", store.labels).num_utterances == 2


def test_unusable_recordings_are_counted_and_logged(store, tmp_path, caplog):
    buckets = SpeechBuckets(store, batch_size=2, max_length=800, subsampling=4)
    counts = {"unknown_labels": 0, "empty": 1, "missing_transcript": 0, "more_labels_than_frames": 1, "too_long": 1}
    assert buckets.left_out == counts
    for line in ("1 of 33 recordings are left out: empty", "1 of 33 recordings are left out: more labels"):
        assert line in caplog.text
    assert "1 of 32 recordings" not in caplog.text and "1 of 31 recordings are left out" in caplog.text
    assert SpeechBuckets(store, 2, 800, subsampling=2).left_out["more_labels_than_frames"] == 0
    missing = [Utterance("m", np.ones((300, F), "float32"), list(text)) for text in ("nan", "<na>", "an", "nanna")]
    buckets = SpeechBuckets(open_speech_store(ListSource(missing, tmp_path), "train"), 2, 800)
    assert buckets.left_out["missing_transcript"] == 2 and buckets.numbers.tolist() == [2, 3]


def test_an_epoch_has_each_recording_once_and_the_next_another_order(store):
    buckets = SpeechBuckets(store, batch_size=2, max_length=800, subsampling=4)
    batches = buckets.training_batches(seed=3)
    count = batches.steps_per_epoch
    epochs = [elements(batches, number * count, (number + 1) * count) for number in (0, 1)]
    found = [recordings_of(epoch) for epoch in epochs]
    assert sorted(found[0]) == sorted(found[1]) == list(range(30)) and found[0] != found[1]
    assert {batch[0]["features"].shape for batch in epochs[0]} == {(2, 800, F), (4, 400, F), (8, 200, F)}
    assert len({batch[1].shape for batch in epochs[0]}) == 3  # one width of labels for each length
    assert sorted(recordings_of(elements(buckets.evaluation_batches()))) == list(range(30))


def test_masked_bands_have_limited_widths_and_change_with_the_step():
    features, fill = np.ones((1000, 8), "float32"), np.zeros(8, "float32")
    masks = FeatureMasks(time_masks=2, time_width=50, frequency_masks=1, frequency_width=3)
    found = [masks.apply(features, fill, step, 0) for step in range(40)]
    hidden_times = [int((each == 0).all(axis=1).sum()) for each in found]
    hidden_bands = [int((each == 0).all(axis=0).sum()) for each in found]
    assert 50 < max(hidden_times) <= 100 and set(hidden_bands) == {0, 1, 2, 3}
    assert any((one != other).any() for one, other in itertools.pairwise(found))
    np.testing.assert_array_equal(masks.apply(features, fill, 7, 0), found[7])
    assert features.all()  # the argument is not changed
    np.testing.assert_array_equal(FeatureMasks().apply(features, fill, 0, 0), features)
    short = FeatureMasks(time_masks=1).apply(features[:10], fill, 3, 0)
    assert (short == 0).all(axis=1).sum() <= 2
    two_bands = FeatureMasks(frequency_masks=2)
    found = [two_bands.apply(features[:10, :5], fill[:5], step, 0) for step in range(200)]
    assert {int(each[0].sum()) for each in found} == {1, 2, 3, 4, 5}  # never all


def test_invalid_arguments_and_recordings_are_errors(store, tmp_path, subtests):
    buckets = SpeechBuckets(store, 2, 800)
    with pytest.raises(ValueError, match="`seed`"):
        buckets.training_batches(seed=-1)
    for name, value in {"time_masks": -1, "frequency_width": 0, "seed": -1}.items():
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            FeatureMasks(**{name: value})
    for name, utterances, message in [
        ("unusable", [ODD[0]], "`store` must have usable recordings"),
        ("flat", [Utterance("flat", np.ones((0, F)), ["a"])], "4 features.*flat"),
        ("nan", [Utterance("nan", np.full((3, F), np.nan), ["a"])], "`source` must have finite features"),
        ("none", [], "`split` must have recordings"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=message):
            SpeechBuckets(open_speech_store(ListSource(utterances, tmp_path / name), "train"), 1, 800)


CODEC = ImageCodec(4, 6, 3, "blocks", (2, 3))
IMAGES = np.random.default_rng(0).integers(256, size=(10, 4, 6, 3), dtype=np.uint8)


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


def test_invalid_arguments_of_batches_of_images_are_errors(subtests):
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
