"""Data sets of images and of audio from TFDS, folders of files, or files of arrays."""

import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.backends import require_tensorflow
from tf_sparse_attention.data.array_store import ArrayStore, ArrayWriter
from tf_sparse_attention.data.codecs import NUM_SPECIAL, AudioCodec
from tf_sparse_attention.data.local_paths import data_folder, local_path
from tf_sparse_attention.data.sources.array_file import ArraySpec, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.file_splits import content_digest, existing_path, file_fingerprint
from tf_sparse_attention.data.sources.media_files import Recording, as_recording, decode_wav, mix_down, open_media_files
from tf_sparse_attention.data.sources.readers import ListReader, Reader
from tf_sparse_attention.data.sources.tfds_reader import find_audio, find_image, open_tfds

PNG_SIGNATURE, DEPTH_BYTE = b"\x89PNG\r\n\x1a\n", 24
PREFIX = "x_"  # prefix of names of arrays of images
IMAGE_ARRAYS = {f"{PREFIX}*": ArraySpec("uint8", "NHWC", is_needed=False)}
AUDIO_ARRAYS = {
    "audio": ArraySpec("int16", "S"),
    "offsets": ArraySpec("integers", "N"),
    "sample_rate": ArraySpec("integers"),
    "is_test": ArraySpec("bool", "N", is_needed=False),
}


class MediaSource:
    """Base class of sources of images, audio and speech: decodes and checks the examples of a reader.

    `decode` converts an example to an item, or to a string with the reason why it cannot be read.
    """

    item = ""  # name of an item in errors, such as "image"

    def __init__(self, reader: Reader, decode: Callable[[dict[str, Any]], Any], data_dir: str) -> None:
        self._reader, self._decode, self.data_dir = reader, decode, data_dir
        self.name, self.fingerprint = reader.name, reader.fingerprint

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self._reader.splits

    def _decoded(self, split):
        """Yield (name, item) for each example, or (name, reason) if it cannot be read."""
        for number, example in enumerate(self._reader.examples(split)):
            name = example.get("name", f"{self.item} {number} of {split} of {self.name}")
            yield name, self._decode({**example, "name": name})

    def _first(self) -> Any:
        """Return the first item."""
        name, item = next(self._decoded(self.splits[0] if self.splits else "train"))
        if isinstance(item, str):
            raise ValueError(f"`path` must hold readable {self.item}s. Received: {name}, {item}.")
        return item

    def _valid(self, split: str, find_fault: Callable[[Any], str | None], expected: str) -> Iterator[Any]:
        """Yield items until the first invalid one, then check the rest and raise an error for all invalid items.

        `find_fault` describes the fault of an item, or returns None. `expected` describes valid items.
        """
        first, count, num_invalid = "", 0, 0
        for name, item in self._decoded(split):
            count += 1
            fault = item if isinstance(item, str) else find_fault(item)
            if fault:
                first = first or f"{name}, {fault}"
                num_invalid += 1
            elif not num_invalid:
                yield item
        if num_invalid:
            raise ValueError(
                f"`path` or `tfds` must hold only {expected}. "
                f"Received: {num_invalid} of {count} are invalid, the first is {first}."
            )


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
        self._shape: Any = None if image_shape is None else checks.checked_counts("image_shape", image_shape)
        if self._shape is not None and len(self._shape) != 3:
            raise ValueError(f"`image_shape` must be (height, width, channels). Received: image_shape={image_shape}.")

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
        tfds: name of a TFDS data set of images, such as "cifar10" or "downsampled_imagenet/64x64".
        path: instead of `tfds`, a folder of PNG and JPEG files, or a file NAME.npz of arrays uint8 (N, H, W, C) with
            names such as "x_train" for the split train. Image files have 1 (gray), 3 (RGB) or 4 (RGBA) channels;
            palettes are converted to colors. Subfolders named train, validation and test are the splits. Otherwise
            files are split by the hash of their content (about 90/5/5).
        image_shape: (height, width, channels) of all images. None: the shape of the data set, or of the first image.
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
        reader = open_tfds(tfds, [find_image], data_dir, local_dir, try_gcs)
        (field,) = reader.fields
        shape = reader.features[field].shape
        is_known = image_shape is None and None not in shape
        return ImageSource(reader, lambda example: example[field], folder, shape if is_known else image_shape)
    file = existing_path(local_path(path), "folder of images, or a file NAME.npz")
    if file.is_dir():
        files = open_media_files(file, (".png", ".jpg", ".jpeg"), "images")
        return ImageSource(files, lambda example: decode_image(example["content"]), folder, image_shape)
    arrays = {name.removeprefix(PREFIX): array for name, array in read_arrays(file, IMAGE_ARRAYS).items()}
    if not arrays:
        raise ValueError(f"`path` must hold arrays with names such as x_train. Received: path={path}, without any.")
    fingerprint = f"image_arrays/{file.stem}_{file_fingerprint(file)}"
    array_reader = ListReader(file.stem, fingerprint, arrays, lambda image: {"image": image})
    image_shape = next(iter(arrays.values())).shape[1:] if image_shape is None else image_shape
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


class AudioSource(MediaSource):
    """Recordings of a data set, all with the same sample rate.

    Made by `open_audio`. `open_token_store(source, codec, split)` writes the recordings to disk once, as 2-byte ids,
    for `training_batches` and `evaluation_batches`. Each recording is a document.

    Attributes:
        name: name of the data set.
        fingerprint: string that identifies the content.
        data_dir: folder for prepared data.
    """

    item = "recording"

    def __init__(
        self,
        reader: Reader,
        decode: Callable[[dict[str, Any]], Recording | str],
        data_dir: str,
        sample_rate: int | None = None,
    ) -> None:
        checks.check_optional_count("sample_rate", sample_rate)
        super().__init__(reader, decode, data_dir)
        self._sample_rate = sample_rate

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        if self._sample_rate is None:
            self._sample_rate = self._first().sample_rate
        return self._sample_rate

    def recordings(self, split: str) -> Iterator[np.ndarray]:
        """Iterate over the recordings of a split, int16 (T,), always in the same order. Channels are averaged.

        Args:
            split: name of a split, or of a part in TFDS syntax ("train[:1%]").

        Raises:
            ValueError: If the split does not exist. After the last recording: if recordings have another sample rate
                or no samples, or cannot be read. The message has the number of invalid recordings and the first name.
        """
        rate = self.sample_rate

        def find_fault(recording: Recording) -> str | None:
            if recording.sample_rate != rate:
                return f"of {recording.sample_rate} samples per second"
            return None if len(recording.samples) else "without samples"

        recordings = self._valid(split, find_fault, f"recordings of {rate} samples per second")
        return (mix_down(recording.samples) for recording in recordings)

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterate over the recordings as bytes of an `AudioCodec`, one per sample; see `recordings`."""
        codec = AudioCodec(self.sample_rate)
        for samples in self.recordings(split):
            yield (codec.encode(samples) - NUM_SPECIAL).astype(np.uint8).tobytes()


def open_audio(
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    sample_rate: int | None = None,
    local_dir: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
) -> AudioSource:
    """Open a data set of audio. TFDS data sets are downloaded and prepared on first use.

    A file NAME.npz has the arrays `audio`, int16 (S,); `offsets`, integers (N + 1,): recording n is
    `audio[offsets[n]:offsets[n + 1]]`; `sample_rate`, an integer; and optionally `is_test`, bool (N,): the split test.
    All other recordings are the split train. Recordings are in the order of their content hashes.

    Args:
        tfds: name of a TFDS data set with a feature `tfds.features.Audio`, such as "groove/full-16000hz".
        path: instead of `tfds`, a folder of WAV files of 16-bit PCM, or a file NAME.npz. Subfolders named train,
            validation and test are the splits. Otherwise files are split by the hash of their content (about 90/5/5).
        sample_rate: samples per second that all recordings must have. None: the rate of the data set, or of the first
            recording. Recordings are not resampled.
        local_dir, data_dir, try_gcs: see `open_source`.

    Raises:
        ValueError: If not one of `tfds` and `path` is given, there are no recordings, or no `sample_rate` is known.
        ImportError: If tensorflow-datasets is needed and not installed.

    Example:

    >>> source = open_audio(path="recordings", data_dir="/tmp/data")
    >>> store = open_token_store(source, AudioCodec(source.sample_rate), "train")
    """
    checks.check_one_given(tfds=tfds, path=path)
    folder = data_folder(data_dir)
    if path is None:
        reader = open_tfds(tfds, [find_audio], data_dir, local_dir, try_gcs)
        (field,) = reader.fields
        known_rate = reader.features[field].sample_rate or sample_rate
        if known_rate is None:
            raise ValueError(
                f"`sample_rate` must be given for a data set without a sample rate. Received: None for {reader.name}."
            )
        rate = int(known_rate)
        sample_rate = rate if sample_rate is None else sample_rate
        return AudioSource(reader, lambda example: as_recording(example[field], rate), folder, sample_rate)
    file = existing_path(local_path(path), "folder of WAV files, or a file NAME.npz")
    if file.is_dir():
        files = open_media_files(file, (".wav",), "WAV files")
        return AudioSource(files, lambda example: decode_wav(example["content"]), folder, sample_rate)
    arrays, rate = _open_arrays(file)
    sample_rate = rate if sample_rate is None else sample_rate
    return AudioSource(arrays, lambda example: Recording(example["audio"], rate), folder, sample_rate)


def _open_arrays(path: pathlib.Path) -> tuple[ListReader, int]:
    """Return the reader of a file NAME.npz and its sample rate."""
    arrays = read_arrays(path, AUDIO_ARRAYS)
    offsets = checked_offsets(arrays, "offsets", "audio", path)
    count = len(offsets) - 1
    is_test = arrays.get("is_test", np.zeros(count, bool))
    if len(is_test) != count:
        raise ValueError(
            f"`path` must hold `is_test` as bool ({count},), one per recording. "
            f"Received: {path} with {is_test.dtype} of shape {is_test.shape}."
        )

    def read(number: int) -> dict[str, np.ndarray]:
        return {"audio": arrays["audio"][offsets[number] : offsets[number + 1]]}

    numbers = sorted(range(count), key=lambda number: content_digest(read(number)["audio"].tobytes()))
    items = {"train": [n for n in numbers if not is_test[n]], "test": [n for n in numbers if is_test[n]]}
    fingerprint = f"audio_arrays/{path.stem}_{file_fingerprint(path)}"
    return ListReader(path.stem, fingerprint, items, read), int(arrays["sample_rate"])
