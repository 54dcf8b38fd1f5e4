"""Reads images from the disk: folders of PNG and JPEG files, and arrays in a file."""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.sources.array_file import Form, read_arrays
from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.media_files import MediaFolder, select

SUFFIXES = (".png", ".jpg", ".jpeg")
PNG_SIGNATURE, DEPTH_BYTE = b"\x89PNG\r\n\x1a\n", 24
PREFIX = "x_"  # of the names of arrays
FORMS = {f"{PREFIX}*": Form("uint8", "NHWC", is_needed=False)}


class FolderReader:
    """The PNG and JPEG files of a folder, with any folders in it; see `ImageSource` and `MediaFolder`.

    Channels are those of the file: 1 of a grey one, 3, or 4 with transparency; colours of a palette are looked up.

    Args:
        path: the folder.

    Raises:
        ValueError: As `MediaFolder`.
    """

    shape = None

    def __init__(self, path: str | os.PathLike) -> None:
        self._folder = MediaFolder(path, SUFFIXES, "images")
        self.name, self.splits = self._folder.name, self._folder.splits
        self.fingerprint = f"image_folder/{self.name}_{self._folder.fingerprint}"

    def read(self, split: str) -> Iterator[tuple[str, np.ndarray | str]]:
        """Yields the images of a split with the names of their files."""
        for file in self._folder.files(split):
            yield file.name, read_image(file.read())


def read_image(content: bytes) -> np.ndarray | str:
    """Returns the image in the bytes of a PNG or JPEG file, uint8 (H, W, C), or as text why it cannot be read."""
    import tensorflow as tf

    if content.startswith(PNG_SIGNATURE) and content[DEPTH_BYTE : DEPTH_BYTE + 1] == b"\x10":
        return "which has 16 bits a channel, of which 8 would be lost"
    try:
        return tf.io.decode_image(content, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        # TensorFlow says {{node}} before and [Op:name] behind.
        said = re.sub(r"^{{[^}]*}} ", "", error.message.splitlines()[0]).partition(" [Op:")[0]
        return f"which cannot be read: {said.removesuffix('.')}"


class ArrayReader:
    """The arrays of a file NAME.npz whose names begin with "x_": x_train is the split train; see `ImageSource`.

    Args:
        path: the file.

    Raises:
        ValueError: If there is no such file, it is damaged, or an array is not uint8 (N, H, W, C).
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path).expanduser().resolve()
        if not self._path.is_file():
            raise ValueError(f"`path` must be an existing folder of images, or a file NAME.npz. Received: path={path}.")
        found = read_arrays(self._path, FORMS)
        self._arrays = {name.removeprefix(PREFIX): array for name, array in found.items()}
        if not self._arrays:
            raise ValueError(f"`path` must hold arrays named x_train and so on. Received: path={path}, without any.")
        self.name = self._path.stem
        self.fingerprint = f"image_arrays/{self.name}_{content_digest(self._path.read_bytes())[:16]}"
        self.shape: Any = next(iter(self._arrays.values())).shape[1:]

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._arrays)

    def read(self, split: str) -> Iterator[tuple[str, np.ndarray | str]]:
        """Yields the images of a split, with their numbers as names."""
        for number, image in enumerate(select(split, self._arrays)):
            yield f"image {number} of {split} of {self._path.name}", image
