"""Reads images from the disk: folders of PNG and JPEG files, and arrays in a file."""

import os
import pathlib
import re
import types
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.text_files import (
    SPLITS,
    TextFile,
    content_digest,
    fingerprint_files,
    nonempty_splits,
)

SUFFIXES = (".png", ".jpg", ".jpeg")
PNG_SIGNATURE, DEPTH_BYTE = b"\x89PNG\r\n\x1a\n", 24
PREFIX = "x_"  # of the names of arrays


class FolderReader:
    """The PNG and JPEG files of a folder, with any folders in it; see `ImageSource`.

    Folders named train, validation or test are the splits; otherwise the hash of each file's content decides (about
    90/5/5, and equal files are never in two), see `text_files.nonempty_splits`. Channels are those of the file: 1 of a
    grey one, 3, or 4 with transparency; colours of a palette are looked up. Other and hidden files are left out.

    Args:
        path: the folder.

    Raises:
        ValueError: If there is no such folder, it holds no images, or fewer than 3 different ones to split.
    """

    shape = None

    def __init__(self, path: str | os.PathLike) -> None:
        folder = pathlib.Path(path).expanduser().resolve()
        if not folder.is_dir():
            raise ValueError(f"`path` must be an existing folder of images, or a file NAME.npz. Received: path={path}.")
        parts = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
        files = {split: _list_images(folder, part) for split, part in (parts or {"": folder}).items()}
        if not any(files.values()):
            raise ValueError(f"`path` must hold files {', '.join(SUFFIXES)}. Received: path={path}, without any.")
        if not parts:
            _check_different(files[""], path)
        self._files = {
            split: found for split, found in (files if parts else nonempty_splits(files[""])).items() if found
        }
        self.name = re.sub("[^A-Za-z0-9]+", "_", folder.name).strip("_") or "images"
        everything = [file for found in self._files.values() for file in found]
        self.fingerprint = f"image_folder/{self.name}_{fingerprint_files(everything)}"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._files)

    def read(self, split: str) -> Iterator[tuple[str, np.ndarray | str]]:
        """Yields the images of a split with the names of their files."""
        for file in select(split, self._files):
            yield file.name, read_image(file.read())


def _list_images(folder, part):
    """Returns the images in a part of a folder, `TextFile`s sorted by name."""
    files = []
    for path in part.rglob("*"):
        relative = path.relative_to(folder)
        if path.suffix.lower() in SUFFIXES and not any(name.startswith(".") for name in relative.parts):
            files.append(TextFile(relative.as_posix(), path, content_digest(path.read_bytes())))
    return sorted(files, key=lambda file: file.name)


def _check_different(files, path):
    different = len({file.digest for file in files})
    if different < len(SPLITS):
        raise ValueError(
            "`path` must hold 3 different images or more, for training, validation and testing, or folders of these "
            f"names. Received: path={path} with {different}."
        )


def read_image(content: bytes) -> np.ndarray | str:
    """Returns the image in the bytes of a PNG or JPEG file, uint8 (H, W, C), or as text why it cannot be read."""
    import tensorflow as tf

    if content.startswith(PNG_SIGNATURE) and content[DEPTH_BYTE : DEPTH_BYTE + 1] == b"\x10":
        return "which has 16 bits a channel, of which 8 would be lost"
    try:
        return tf.io.decode_image(content, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        return f"which cannot be read: {error.message.splitlines()[0].partition(' [Op:')[0]}"


class ArrayReader:
    """The arrays of a file NAME.npz whose names begin with "x_": x_train is the split train; see `ImageSource`.

    Args:
        path: the file.

    Raises:
        ValueError: If there is no such file, or an array is not uint8 (N, H, W, C).
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path).expanduser().resolve()
        if not self._path.is_file():
            raise ValueError(f"`path` must be an existing folder of images, or a file NAME.npz. Received: path={path}.")
        try:
            with np.load(self._path, allow_pickle=False) as arrays:
                names = [name for name in arrays.files if name.startswith(PREFIX)]
                self._arrays = {name.removeprefix(PREFIX): arrays[name] for name in names}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"`path` must be a whole file of arrays. Received: {path}: {error}.") from error
        for name, array in self._arrays.items():
            if array.dtype != np.uint8 or array.ndim != 4:
                raise ValueError(
                    "`path` must hold images as uint8 (N, H, W, C). "
                    f"Received: {PREFIX}{name} of {self._path.name}, {array.dtype} of shape {array.shape}."
                )
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


def select(split: str, items: Mapping[str, Sequence[Any] | np.ndarray]) -> list[Any]:
    """Returns the items of a split, or of a part of one, in the syntax of TFDS ("train[:90%]", "train+test").

    Args:
        split: the split.
        items: those of each split.

    Raises:
        ValueError: If there is no such split.
    """
    sizes = {name: types.SimpleNamespace(name=name, num_examples=len(own)) for name, own in items.items()}
    try:
        parts = import_tfds().core.ReadInstruction.from_spec(split).to_absolute(sizes)
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"`split` must be one of {', '.join(items)}, or a part of one, such as train[:90%] and train[90%:]. "
            f"Received: split={split}."
        ) from error
    return [item for part in parts for item in items[part.splitname][part.from_ : part.to]]
