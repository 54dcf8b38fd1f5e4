"""SavedModels of audio, image and speech models: scores, samples and transcripts equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.draws import first
from tests.export.portable_cases import make_recognizer
from tests.export.serving import call, make_byte_model, make_model, nats_of
from tf_sparse_attention.data import AudioCodec, ImageCodec, LogMel
from tf_sparse_attention.export import export_audio, export_images, export_speech
from tf_sparse_attention.generation import Sampling

CODEC = AudioCodec(sample_rate=100)
WINDOW = 8
LENGTHS = [19, 0, 8]
SAMPLES = np.random.default_rng(0).integers(-9000, 9000, size=(3, 20), dtype=np.int16)


@pytest.fixture(scope="module")
def model():
    return make_byte_model((16, 6))


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "player"
    return export_audio(model, path, CODEC, WINDOW, batch_size=2, jit_compile=False)


@pytest.fixture(scope="module")
def served(exported):
    return tf.saved_model.load(exported).signatures


def draw(served, samples, num_samples, **settings):
    settings = {"max_length": 12, "temperature": 1.0, "top_p": 0.9, "seed": 5, **settings}
    return call(served, "generate", samples=samples, num_samples=num_samples, **settings)


@pytest.mark.full
def test_scores_are_the_nats_of_all_samples(model, served):
    nats = [nats_of(model, CODEC.encode(row[:length]), WINDOW) for row, length in zip(SAMPLES, LENGTHS, strict=True)]
    for count in (3, 0):
        found = call(served, "score", samples=SAMPLES[:count], num_samples=LENGTHS[:count])
        bits = nats[:count] / np.log(2) / np.maximum(LENGTHS[:count], 1)
        np.testing.assert_allclose(found["nats"], nats[:count], rtol=1e-5)
        np.testing.assert_allclose(found["bits_per_byte"], bits, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("lengths", first([[9, 0, 4], [0, 0, 0]], 1))
def test_recordings_are_continued_as_by_the_model(model, served, lengths):
    prompts = [CODEC.encode(row)[:length] for row, length in zip(SAMPLES, lengths, strict=True)]
    rows = model.generator.generate(prompts, 12, Sampling(top_p=0.9), 5, None, 257)
    found = draw(served, SAMPLES, lengths)
    np.testing.assert_array_equal(found["samples"], CODEC.decode(np.stack([row.token_ids for row in rows])))
    np.testing.assert_allclose(found["log_prob"], [row.log_probs.sum() for row in rows], atol=1e-3)
    np.testing.assert_array_equal(draw(served, SAMPLES[:1], lengths[:1])["samples"], found["samples"][:1])
    assert draw(served, np.zeros((0, 0), np.int16), [])["samples"].shape == (0, 12)


@pytest.mark.full
def test_inputs_that_do_not_fit_are_errors_that_name_them(served):
    for lengths, settings, message in [
        ([3, 3], {}, "`num_samples` must have one number per row.*2"),
        ([3, 3, 21], {}, "`num_samples` must be from 0 to the length of the rows"),
        ([-1, 3, 3], {}, "`num_samples` must be from 0 to the length of the rows"),
        ([3, 3, 13], {}, "`max_length` must be positive and at least the length of each prompt.*12"),
        ([3, 3, 3], {"max_length": 97}, "`max_length` must be at most 96"),
        ([3, 3, 3], {"top_p": 0.0}, "`top_p`"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            draw(served, SAMPLES, lengths, **settings)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`num_samples` must be from 0 to the length"):
        call(served, "score", samples=SAMPLES, num_samples=[1, 2, 21])


@pytest.mark.pages
def test_the_example_of_the_readme_runs(exported, monkeypatch, capsys):
    example = (exported / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(exported.parent)
    exec(compile(example, "README.md", "exec"), {})
    assert "'bits_per_byte': array([" in (printed := capsys.readouterr().out) and "'samples': array([[" in printed


IMAGE_CODEC = ImageCodec(height=4, width=2, channels=1, order="blocks", block_shape=(2, 1))
IMAGES = np.random.default_rng(0).integers(256, size=(3, 4, 2, 1), dtype=np.uint8)


@pytest.fixture(scope="module")
def image_model():
    return make_byte_model(IMAGE_CODEC.grid)


@pytest.fixture(scope="module")
def images_served(image_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "painter"
    export_images(image_model, path, IMAGE_CODEC, batch_size=2, jit_compile=False)
    return tf.saved_model.load(path).signatures


@pytest.mark.full
def test_scores_of_images_are_the_nats_of_all_bytes(image_model, images_served):
    nats = np.array([nats_of(image_model, ids) for ids in IMAGE_CODEC.encode(IMAGES)])
    for count in (0, 3):
        found = call(images_served, "score", images=IMAGES[:count])
        np.testing.assert_allclose(found["nats"], nats[:count], rtol=1e-5)
        np.testing.assert_allclose(found["bits_per_dim"], nats[:count] / np.log(2) / 8, rtol=1e-5)


SETTINGS = {"num_rows": 2, "temperature": 1.0, "top_p": 0.9, "seed": 5}


@pytest.mark.full
@pytest.mark.parametrize(("num_rows", "num_given"), [(1, 1), (0, 0), (2, 4), (4, 8)])
def test_images_are_those_that_the_model_draws_below_the_given_rows(image_model, images_served, num_rows, num_given):
    strategy, prompts = Sampling(top_p=0.9), list(IMAGE_CODEC.encode(IMAGES)[:, :num_given])
    rows = image_model.generator.generate(prompts, IMAGE_CODEC.length, strategy, 5, None, 257)
    settings = {**SETTINGS, "num_rows": num_rows}
    found, alone = (call(images_served, "generate", images=x, **settings) for x in (IMAGES, IMAGES[:1]))
    np.testing.assert_array_equal(found["images"], IMAGE_CODEC.decode(np.stack([row.token_ids for row in rows])))
    np.testing.assert_allclose(found["log_prob"], [row.log_probs.sum() for row in rows], atol=1e-3)
    np.testing.assert_array_equal(alone["images"], found["images"][:1])


@pytest.mark.full
def test_inputs_of_an_image_model_that_do_not_fit_are_errors(images_served):
    for settings, name in (({"num_rows": 5}, "num_rows"), ({"top_p": 0.0}, "top_p")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`"):
            call(images_served, "generate", images=IMAGES, **{**SETTINGS, **settings})


LABELS = ["ä", "b", " "]
SOUND = LogMel(sample_rate=8000, num_bands=6)
FRAMES = [41, 3, 20]


@pytest.fixture(scope="module")
def recognizer():
    return make_recognizer({"grid": (4, 8)})


@pytest.fixture(scope="module")
def recognizer_served(recognizer, tmp_path_factory):
    path = export_speech(recognizer, tmp_path_factory.mktemp("export") / "recognizer", LABELS, "-", SOUND)
    return tf.saved_model.load(path).signatures


def recordings(lengths=FRAMES, size=(6,)):
    random = np.random.default_rng(0)
    return [random.normal(size=(length, *size)).astype("float32") for length in lengths]


def padded(rows):
    """Return rows padded with numbers that must not change the outputs."""
    array = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), 9.0, "float32")
    for row, given in zip(array, rows, strict=True):
        row[: len(given)] = given
    return array, [len(row) for row in rows]


def check(recognizer, rows, found):
    """Compare outputs with those of the recognizer for each recording alone."""
    for number, features in enumerate(rows):
        log_probs = keras.ops.convert_to_numpy(recognizer(features[None]))[0]
        np.testing.assert_allclose(found["log_probs"][number, : len(log_probs)], log_probs, atol=1e-4)
        np.testing.assert_allclose(found["log_prob"][number], log_probs.max(axis=-1).sum(), rtol=1e-4)
        (ids,) = recognizer.transcribe([features])
        assert found["num_labels"][number] == len(ids)
        assert found["text"][number].decode() == "-".join(LABELS[number - 1] for number in ids)


def test_transcripts_of_features_are_those_of_the_model(recognizer, recognizer_served):
    for lengths in (FRAMES, [7]):
        rows = recordings(lengths)
        features, num_frames = padded(rows)
        found = call(recognizer_served, "transcribe", features=features, num_frames=num_frames)
        assert len(lengths) < 3 or sum(found["num_labels"]) > 3
        check(recognizer, rows, found)


def test_transcripts_of_sound_are_those_of_its_features(recognizer, recognizer_served):
    rows = recordings([2000, 900, 90], ())  # the last is shorter than a window
    samples, num_samples = padded(rows)
    found = call(recognizer_served, "transcribe_sound", samples=samples, num_samples=num_samples)
    check(recognizer, [SOUND(row) for row in rows], found)


def test_inputs_of_a_recognizer_that_do_not_fit_are_errors(recognizer_served):
    for count in ([5, 6], [0], [8]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`num_frames`"):
            call(recognizer_served, "transcribe", features=np.zeros((1, 7, 6)), num_frames=count)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`features` must have at most 64 frames"):
        call(recognizer_served, "transcribe", features=np.zeros((1, 65, 6)), num_frames=[9])
    with pytest.raises(tf.errors.InvalidArgumentError, match="`samples` must have at most 64 frames"):
        call(recognizer_served, "transcribe_sound", samples=np.zeros((1, 8000)), num_samples=[900])


def test_arguments_that_do_not_fit_are_errors_that_name_them(model, image_model, recognizer, tmp_path):
    small = make_model(vocabulary_size=200)
    for export, given, arguments, message in [
        (export_audio, model, {"codec": ImageCodec(4, 2)}, "`codec`"),
        (export_audio, model, {"codec": CODEC, "sequence_length": 97}, "`sequence_length` must be at most the 96 pos"),
        (export_audio, model, {"codec": CODEC, "sequence_length": 8, "batch_size": 0}, "`batch_size`"),
        (export_audio, model, {"codec": CODEC, "sequence_length": 8, "weight_dtype": "int4"}, "`weight_dtype`"),
        (export_images, image_model, {"codec": "raster"}, "`codec` must be a .*ImageCodec`"),
        (export_images, image_model, {"codec": ImageCodec(4, 4, 2)}, "`codec.length` must be at most the 8 positions"),
        (export_images, small, {"codec": IMAGE_CODEC}, "`codec` must not have more ids .* 257 ids .* with 200"),
        (export_speech, recognizer, {"labels": ["a"]}, "`labels`"),
        (export_speech, recognizer, {"labels": "abc"}, "`labels`"),
        (export_speech, recognizer, {"labels": LABELS, "separator": 1}, "`separator`"),
        (export_speech, recognizer, {"labels": LABELS, "log_mel": LogMel()}, "`log_mel` must be a `LogMel` of 6 bands"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(given, tmp_path / "x", **arguments)
