"""Opens data sets of images: by TFDS name, a folder of files, or arrays in a file."""

import hashlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file, remove_stale
from tf_sparse_attention.data import checksums
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import data_folder, import_tfds
from tf_sparse_attention.data.sources.media_files import without_odd
from tf_sparse_attention.data.sources.text_source import check_folder, find_builder
from tf_sparse_attention.data.sources.tfds_preparation import making_builder
from tf_sparse_attention.remote_files import is_remote

FORMAT = 1  # of the files that `ImageSource.array` writes


class ImageSource:
    """The images of one data set, all of one shape.

    Made by `open_images`.

    Attributes:
        name: name of the data set.
        fingerprint: string that identifies its content.
        data_dir: folder in which `array` keeps its files, a string.

    Args:
        reader: what reads the data set: has `name`, `fingerprint`, `splits`, `shape` or None where only images tell it,
            and `read(split)`, an iterator over pairs of a name and either uint8 (H, W, C) or, as text, what is wrong.
        data_dir: a folder.
        image_shape: (H, W, C). None: that of the data set, or else of its first image.
    """

    def __init__(self, reader: Any, data_dir: str, image_shape: Sequence[int] | None = None) -> None:
        self._reader, self.data_dir = reader, data_dir
        self.name, self.fingerprint = reader.name, reader.fingerprint
        self._shape = reader.shape if image_shape is None else _checked_shape(image_shape)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._reader.splits)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of each image."""
        if self._shape is None:
            name, image = next(self._reader.read(self.splits[0] if self.splits else "train"))
            if isinstance(image, str):
                raise ValueError(f"`path` must hold images that can be read. Received: {name}, {image}.")
            self._shape = image.shape
        return self._shape

    def images(self, split: str) -> Iterator[np.ndarray]:
        """Iterates over the images of a split, always in the same order.

        Args:
            split: name of a split, or a part of one in the syntax of TFDS ("train[:1%]").

        Returns:
            Iterator of uint8 (H, W, C).

        Raises:
            ValueError: If there is no such split; at the end, if there was an image of another shape, one of more than
                8 bits a channel, or one that cannot be read, with the name of the first and their number.
        """
        shape = self.shape

        def find_fault(image):
            if image.dtype != np.uint8:
                return f"of {image.dtype}, not of 8 bits a channel"
            return None if image.shape == shape else f"of {_words(image.shape)}"

        return without_odd(self._reader.read(split), find_fault, f"images of {_words(shape)}")

    def array(self, split: str, folder: str | os.PathLike | None = None) -> np.ndarray:
        """Returns the images of a split as an array on the disk, which is written on first use.

        The file is complete or absent, whenever the process is killed, and its name comes from the fingerprint, the
        split and the shape, so that other images are never taken for these; it has a checksum beside
        it. N H W C bytes: 154 MB for the training part of CIFAR-10, 15.7 GB for that of ImageNet-64.

        Args:
            split: as for `images`.
            folder: folder of such files. None: "images" in `data_dir`.

        Returns:
            uint8 (N, H, W, C), mapped into memory, read-only.

        Raises:
            ValueError: as `images`, for a split without images, and for a file that is not what was written.
        """
        folder = os.path.join(self.data_dir, "images") if folder is None else folder
        if is_remote(folder):
            raise ValueError(f"`folder` must be on a local disk, to be mapped into memory. Received: folder={folder}.")
        root = pathlib.Path(folder).expanduser()
        identity = f"{FORMAT}\0{self.fingerprint}\0{split}\0{self.shape}"
        digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        path = root / f"{re.sub('[^A-Za-z0-9]+', '_', f'{self.name}_{split}')}_{digest}.npy"
        sums, what = path.with_suffix(".checksums.json"), {"source": self.fingerprint, "split": split}
        found = _opened(path)
        if found is not None:
            checksums.check(sums, path, what)
        else:
            root.mkdir(parents=True, exist_ok=True)
            remove_stale(root)
            with atomic_file(path) as temporary:
                _write(temporary, self.images(split), self.shape, f"split={split} of {self.name}")
                # Before the file has its name: a killed process never leaves an array without its checksums.
                checksums.write_checksums(sums, {path.name: temporary}, what)
            found = np.load(path, mmap_mode="r")
        return found


def _opened(path):
    """Returns the array in a file, None if it is not there or damaged."""
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError):
        return None


def _write(path, images, shape, what):
    """Writes images as they come into a file of NumPy."""
    count = 0
    with open(path, "wb") as file:
        _write_header(file, count, shape)
        for image in images:
            file.write(np.ascontiguousarray(image).tobytes())
            count += 1
        file.seek(0)
        _write_header(file, count, shape)
    if count == 0:
        raise ValueError(f"`split` must have images. Received: {what}.")


def _write_header(file, count, shape):
    # NumPy leaves room for the number of rows, so that the header of any number is as long.
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
    np.lib.format.write_array_header_1_0(file, header)


def _checked_shape(image_shape):
    shape = checks.checked_counts("image_shape", image_shape)
    if len(shape) != 3:
        raise ValueError(f"`image_shape` must be (height, width, channels). Received: image_shape={image_shape}.")
    return shape


def _words(shape):
    """Returns a shape as text."""
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
    """Opens a data set of images. One of TFDS is downloaded and prepared when its images are first read.

    Args:
        tfds: name of a data set of TFDS with an image in each example, such as "cifar10" or
            "downsampled_imagenet/64x64".
        path: instead of `tfds`, a folder of PNG and JPEG files, see `FolderReader`, or a file NAME.npz of arrays, see
            `ArrayReader`.
        image_shape: (height, width, channels) that all images have to have. None: that of the data set, or of the first
            image.
        local_dir: the manual folder of TFDS, with files that the builder would download.
        data_dir: folder of TFDS, and of what `ImageSource.array` writes; None is TFDS's own default.
        try_gcs: whether prepared data may be read from the public bucket of TFDS.

    Returns:
        `ImageSource`.

    Raises:
        ValueError: If none or both of `tfds` and `path` are given, or there are no images.
        ImportError: If tensorflow-datasets is not installed.

    Example:

    >>> source = open_images(path="pictures", image_shape=(32, 32, 3), data_dir="/tmp/data")
    >>> images = source.array("train")
    """
    checks.check_one_given(tfds=tfds, path=path)
    library = import_tfds()
    folder = data_folder(data_dir)
    if path is not None:
        from tf_sparse_attention.data.images.files import ArrayReader, FolderReader

        kind: Any = ArrayReader if str(path).endswith(".npz") else FolderReader
        return ImageSource(kind(local_path(path)), folder, image_shape)
    from tf_sparse_attention.data.images.tfds_reader import TfdsReader

    local = check_folder(local_dir)
    with making_builder(data_dir):
        builder = find_builder(library, str(tfds), data_dir=data_dir, try_gcs=try_gcs)
        return ImageSource(TfdsReader(builder, local, try_gcs), folder, image_shape)
