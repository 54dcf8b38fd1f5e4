"""Data sets of images from TFDS, folders of image files, or files of arrays."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.backends import require_tensorflow
from tf_sparse_attention.data.array_store import ArrayStore, ArrayWriter
from tf_sparse_attention.data.local_paths import data_folder, local_path
from tf_sparse_attention.data.sources.array_file import ArraySpec, read_arrays
from tf_sparse_attention.data.sources.file_splits import existing_path, file_fingerprint
from tf_sparse_attention.data.sources.media_files import MediaSource, open_media_files
from tf_sparse_attention.data.sources.readers import ListReader, Reader
from tf_sparse_attention.data.sources.tfds_reader import find_media_feature, open_tfds

SUFFIXES = (".png", ".jpg", ".jpeg")
PNG_SIGNATURE, DEPTH_BYTE = b"\x89PNG\r\n\x1a\n", 24
PREFIX = "x_"  # prefix of array names
FORMS = {f"{PREFIX}*": ArraySpec("uint8", "NHWC", is_needed=False)}


class ImageSource(MediaSource):
    """Images of a data set, all with the same shape. Made by `open_images`.

    Attributes:
        name: name of the data set.
        fingerprint: string that identifies the content.
        data_dir: folder for prepared data.
    """

    item = "image"

    def __init__(
        self,
        reader: Reader,
        decode: Callable[[dict[str, Any]], np.ndarray | str],
        data_dir: str,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__(reader, decode, data_dir)
        self._shape = None if image_shape is None else _checked_shape(image_shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of each image, (H, W, C)."""
        if self._shape is None:
            self._shape = self._first().shape
        return self._shape

    def images(self, split: str) -> Iterator[np.ndarray]:
        """Iterate over the images of a split, uint8 (H, W, C), always in the same order.

        Args:
            split: name of a split, or of a part in TFDS syntax ("train[:1%]").

        Raises:
            ValueError: If the split does not exist. After the last image: if images have another shape or more than 8
                bits per channel, or cannot be read. The message has the number of invalid images and the first name.
        """
        shape = self.shape

        def find_fault(image: np.ndarray) -> str | None:
            if image.dtype != np.uint8:
                return f"of {image.dtype} instead of 8 bits per channel"
            return None if image.shape == shape else f"of {_describe(image.shape)}"

        return self._valid(split, find_fault, f"images of {_describe(shape)}")

    def array(self, split: str, folder: str | os.PathLike | None = None) -> np.ndarray:
        """Return the images of a split, uint8 (N, H, W, C), memory-mapped and read-only; see `ArrayStore.open`.

        The array takes N H W C bytes: 154 MB for the training split of CIFAR-10, 15.7 GB for ImageNet-64.

        Args:
            split: see `images`.
            folder: folder of these arrays, local or remote. Default: None, "images" in `data_dir`.

        Raises:
            ValueError: See `images`. If the split has no images or a file is damaged.
        """
        folder = os.path.join(self.data_dir, "images") if folder is None else folder
        identity = {"source": self.fingerprint, "split": split, "shape": list(self.shape)}

        def write(writer: ArrayWriter) -> dict[str, Any]:
            writer.append("images", np.zeros((0, *self.shape), np.uint8))
            for image in self.images(split):
                writer.append("images", image[None])
            if not writer.num_rows("images"):
                raise ValueError(f"`split` must have images. Received: split={split} of {self.name}.")
            return {}

        return ArrayStore.open(folder, f"{self.name}_{split}", identity, write).arrays["images"]


def _checked_shape(image_shape):
    shape = checks.checked_counts("image_shape", image_shape)
    if len(shape) != 3:
        raise ValueError(f"`image_shape` must be (height, width, channels). Received: image_shape={image_shape}.")
    return shape


def _describe(shape):
    if len(shape) != 3:
        return f"shape {shape}"
    return f"{shape[0]} x {shape[1]} pixels with {shape[2]} channel{'s' * (shape[2] != 1)}"


def open_images(
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    image_shape: Sequence[int] | None = None,
    local_dir: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
) -> ImageSource:
    """Open a data set of images. TFDS data sets are downloaded and prepared on first use.

    Args:
        tfds: name of a TFDS data set with an image in each example, such as "cifar10" or
            "downsampled_imagenet/64x64".
        path: instead of `tfds`, a folder of PNG and JPEG files, or a file NAME.npz of arrays uint8 (N, H, W, C) with
            names such as "x_train" for the split train. Image files have 1 (gray), 3 (RGB) or 4 (RGBA) channels;
            palettes are converted to colors. Subfolders named train, validation and test are the splits. Otherwise
            files are split by the hash of their content (about 90/5/5).
        image_shape: (height, width, channels) that all images must have. None: the shape of the data set, or of the
            first image.
        local_dir, try_gcs: see `open_source`.
        data_dir: folder of TFDS and of the files of `ImageSource.array`. None: the default of TFDS.

    Raises:
        ValueError: If none or both of `tfds` and `path` are given, or there are no images.
        ImportError: If tensorflow-datasets is needed and not installed. While image files are read: if TensorFlow,
            which decodes them, is not installed.

    Example:

    >>> source = open_images(path="pictures", image_shape=(32, 32, 3), data_dir="/tmp/data")
    >>> images = source.array("train")
    """
    checks.check_one_given(tfds=tfds, path=path)
    folder = data_folder(data_dir)
    if path is None:
        reader = open_tfds(
            tfds, lambda features: [find_media_feature(features, "Image", "an image")], data_dir, local_dir, try_gcs
        )
        (field,) = reader.fields
        shape = reader.features[field].shape
        is_known = image_shape is None and None not in shape
        return ImageSource(reader, lambda example: example[field], folder, shape if is_known else image_shape)
    file = existing_path(local_path(path), "folder of images, or a file NAME.npz")
    if file.is_dir():
        files = open_media_files(file, SUFFIXES, "images")
        return ImageSource(files, lambda example: decode_image(example["content"]), folder, image_shape)
    arrays = {name.removeprefix(PREFIX): array for name, array in read_arrays(file, FORMS).items()}
    if not arrays:
        raise ValueError(f"`path` must hold arrays with names such as x_train. Received: path={path}, without any.")
    fingerprint = f"image_arrays/{file.stem}_{file_fingerprint(file)}"
    array_reader = ListReader(file.stem, fingerprint, arrays, lambda image: {"image": image})
    shape = next(iter(arrays.values())).shape[1:]
    image_shape = shape if image_shape is None else image_shape
    return ImageSource(array_reader, lambda example: example["image"], folder, image_shape)


def decode_image(content: bytes) -> np.ndarray | str:
    """Decode a PNG or JPEG file to uint8 (H, W, C), or return the reason for a failure."""
    require_tensorflow("Decoding PNG and JPEG files")
    import tensorflow as tf

    if content.startswith(PNG_SIGNATURE) and content[DEPTH_BYTE : DEPTH_BYTE + 1] == b"\x10":
        return "which has 16 bits per channel, not 8"
    try:
        return tf.io.decode_image(content, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        # Remove the {{node}} before and the [Op:name] after the message.
        message = re.sub(r"^{{[^}]*}} ", "", error.message.splitlines()[0]).partition(" [Op:")[0]
        return f"which cannot be read: {message.removesuffix('.')}"
