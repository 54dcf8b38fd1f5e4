"""Images of TFDS, folders and files of arrays: each once, in a fixed order, and errors name invalid images."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.data.builders import register
from tf_sparse_attention.data import open_images

RANDOM = np.random.default_rng(0)


def drawn(count, shape=(4, 5, 3)):
    return RANDOM.integers(256, size=(count, *shape), dtype=np.uint8)


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    encode = tf.io.encode_png if path.suffix == ".png" else tf.io.encode_jpeg
    path.write_bytes(encode(image).numpy())


IMAGES = {"train": drawn(5), "validation": drawn(1), "test": drawn(2)}


@pytest.fixture
def folder(tmp_path):
    for split, own in IMAGES.items():
        for number, image in enumerate(own):
            write(tmp_path / "pictures" / split / "deep" / f"{number}.png", image)
    (tmp_path / "pictures" / "train" / "notes.txt").write_text("no image")
    return tmp_path / "pictures"


def test_folders_of_splits_are_the_splits(folder, tmp_path):
    source = open_images(path=folder, data_dir=tmp_path / "data")
    assert source.splits == ("train", "validation", "test") and source.shape == (4, 5, 3)
    for split, own in IMAGES.items():
        np.testing.assert_array_equal(np.stack([*source.images(split)]), own)
        np.testing.assert_array_equal(source.array(split), own)
    np.testing.assert_array_equal(source.array("train[40%:]"), IMAGES["train"][2:])
    np.testing.assert_array_equal(source.array("test+validation[:1]"), [*IMAGES["test"], *IMAGES["validation"]])


def test_jpeg_and_grey_images_are_read_as_tensorflow_does(tmp_path):
    image = drawn(1, (8, 8, 1))[0]
    for split in ("train", "test"):
        write(tmp_path / "grey" / split / "a.jpg", image)
    source = open_images(path=tmp_path / "grey", data_dir=tmp_path)
    content = (tmp_path / "grey" / "train" / "a.jpg").read_bytes()
    assert source.shape == (8, 8, 1)
    np.testing.assert_array_equal(source.array("train")[0], tf.io.decode_jpeg(content).numpy())


def test_the_error_names_an_invalid_image_and_nothing_is_written(folder, tmp_path, subtests):
    options = {"path": folder, "data_dir": tmp_path / "data"}
    spoiled = folder / "train" / "deep" / "3.png"
    png = spoiled.read_bytes()
    for content, message in [
        (tf.io.encode_png(drawn(1, (4, 6, 3))[0]).numpy(), "of 4 x 6 pixels with 3 channels"),
        (tf.io.encode_png(drawn(1, (4, 5, 1))[0]).numpy(), "of 4 x 5 pixels with 1 channel"),
        (b"GIF or so", r"cannot be read: \w[^{]*\w\.$"),
        (png[:70], "cannot be read: "),
        (tf.io.encode_png(np.zeros((4, 5, 3), np.uint16)).numpy(), "16 bits per channel"),
    ]:
        spoiled.write_bytes(content)
        source = open_images(**options)
        with subtests.test(message):
            with pytest.raises(ValueError, match=rf"1 of 5 .*3\.png.*{message}"):
                source.array("train")
            assert not list((tmp_path / "data").rglob("images.bin"))
    np.testing.assert_array_equal(source.array("test"), IMAGES["test"])
    source = open_images(**options, image_shape=(5, 4, 3))
    with pytest.raises(ValueError, match=r"5 of 5 .*0\.png"):
        source.array("train")
    (folder / "train" / "deep" / "0.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"`path` must hold readable images.*0\.png"):
        _ = open_images(**options).shape
    with pytest.raises(ValueError, match="`path` must not change"):
        source.array("train")


def test_arrays_of_a_file_are_splits(tmp_path):
    train, heldout = drawn(6), drawn(4)
    np.savez_compressed(tmp_path / "small.npz", x_train=train, x_heldout=heldout, y_train=np.arange(6))
    source = open_images(path=tmp_path / "small.npz", data_dir=tmp_path)
    assert source.splits == ("train", "heldout") and source.name == "small"
    np.testing.assert_array_equal(source.array("train"), train)
    np.testing.assert_array_equal(source.array("heldout[50%:]"), heldout[2:])


SQUARES = drawn(4, (6, 6, 3))
PICTURE = tfds.features.Image(shape=(6, 6, 3), encoding_format="png")
register("Squares", {"picture": PICTURE}, train=[{"picture": image} for image in SQUARES])


@pytest.mark.filterwarnings("ignore")
def test_a_builder_is_prepared_and_has_each_image_once(tmp_path):
    source = open_images(tfds="squares", data_dir=tmp_path)
    assert source.splits == ("train",)
    found = source.array("train")
    assert sorted(x.tobytes() for x in found) == sorted(x.tobytes() for x in SQUARES)


def test_the_first_image_of_imagenet_has_the_shape_and_eight_bits(tmp_path):
    images = drawn(3, (64, 64, 3))

    def as_dataset(self, *arguments, **options):
        return tf.data.Dataset.from_tensor_slices({"image": images})

    with tfds.testing.mock_data(as_dataset_fn=as_dataset):
        source = open_images(tfds="downsampled_imagenet/64x64", data_dir=tmp_path / "right")
        assert source.shape == (64, 64, 3)
        assert source.fingerprint.startswith("downsampled_imagenet/") and "#image" in source.fingerprint
        np.testing.assert_array_equal(source.array("validation"), images)
        images = images.astype("uint16") * 257
        source = open_images(tfds="downsampled_imagenet/64x64", data_dir=tmp_path / "wrong")
        with pytest.raises(ValueError, match=r"3 of 3 are invalid, .* image 0 .*of uint16 instead of 8 bits"):
            source.array("validation")
    assert not list((tmp_path / "wrong" / "images").iterdir())


def test_invalid_arrays_and_arguments_are_errors(tmp_path, subtests):
    for message, arrays in [
        ("`x_train` as uint8 .*float64", {"x_train": np.zeros((3, 4, 4, 3))}),
        (r"`x_train` as uint8 .*\(3, 4, 4\)", {"x_train": np.zeros((3, 4, 4), np.uint8)}),
        ("names such as x_train", {"train": np.zeros((3, 4, 4, 3), np.uint8)}),
    ]:
        np.savez(tmp_path / "a.npz", **arrays)
        with subtests.test(message), pytest.raises(ValueError, match=message):
            open_images(path=tmp_path / "a.npz")
    (tmp_path / "none").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "two" / f"{name}.png", np.zeros((2, 2, 3), np.uint8))
    for message, options in [
        ("`tfds` and `path`", {}),
        ("`path` must be an existing", {"path": "no_such.npz"}),
        ("`path` must be an existing", {"path": "no_such"}),
        ("`path` must hold files .png, .jpg, .jpeg", {"path": tmp_path / "none"}),
        ("`path` must hold 3 or more different images.*with 1", {"path": tmp_path / "two"}),
        ("`tfds` .*an image in each example", {"tfds": "tiny_shakespeare", "data_dir": tmp_path}),
    ]:
        with subtests.test(message, options=options), pytest.raises(ValueError, match=message):
            open_images(**options)
    write(tmp_path / "two" / "train" / "c.png", np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(ValueError, match="`image_shape`"):
        open_images(path=tmp_path / "two", image_shape=(2, 2))
    with pytest.raises(ValueError, match="`split` must have images"):
        open_images(path=tmp_path / "two", data_dir=tmp_path).array("train[:0]")
