"""Data sets of TFDS: preparation and reading."""

import contextlib
import errno
import functools
import importlib
import logging
import os
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.backends import has_tensorflow, import_optional
from tf_sparse_attention.checks import did_you_mean
from tf_sparse_attention.data.array_store import DamagedDataError
from tf_sparse_attention.data.local_paths import data_folder
from tf_sparse_attention.data.sources.file_splits import SPLITS, content_digest, fingerprint_files
from tf_sparse_attention.data.sources.readers import split_error
from tf_sparse_attention.data.sources.text_files import list_texts

WARNING_DELAY = 20.0  # seconds
FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
NETWORK = ("requests", "urllib3", "httpx", "httpcore", "huggingface_hub")  # libraries that TFDS uses
WITHOUT_TENSORFLOW = "array_record"  # the TFDS format that is written and read without TensorFlow


def import_tfds() -> Any:
    """Import and return `tensorflow_datasets`."""
    return import_optional("tensorflow_datasets", "train", "Reading TFDS data sets")


def make_builder(name: str | None, data_dir: str | os.PathLike | None = None, try_gcs: bool = False) -> Any:
    """Return the `tfds.core.DatasetBuilder` of a data set; `PythonSource` for the name None."""
    tfds = import_tfds()
    # TFDS warns about each data set that it does not list.
    with _log_level("absl"), _convert_damage_errors(f"the folder of the data set in {data_folder(data_dir)}"):
        if name in (None, "python_source"):
            from tf_sparse_attention.data.sources.python_source import PythonSource

            return PythonSource(data_dir=data_dir)
        try:
            return tfds.builder(name, data_dir=data_dir, try_gcs=try_gcs)
        except ValueError as error:
            message = _unknown_name(tfds, str(name))
            if message is None:
                raise
            raise ValueError(message) from error
        except Exception as error:  # from other catalogues, such as "huggingface:NAME"
            if not _is_network_error(error):
                raise
            raise ConnectionError(
                f"`tfds` must be the name of a reachable data set. Received: tfds={name}, with {error}."
            ) from error


def _base_name(name):
    """Return the name of a data set without its configuration, "wiki40b" for "wiki40b/en"."""
    return re.split("[/:]", name)[0]


def _unknown_name(tfds, name):
    """Return the error message for a name that TFDS does not know, or None if it knows the name."""
    known, base = tfds.list_builders(), _base_name(name)
    if base not in known:
        return (
            "`tfds` must be the name of a TFDS data set; use `path` for a file or a folder of text files."
            f"{did_you_mean(name, known)} Received: tfds={name}."
        )
    config = name.partition("/")[2].partition(":")[0]
    configs = list(tfds.builder_cls(base).builder_configs)
    if not config or config in configs:
        return None
    return (
        f"`tfds` must name a configuration of {base}: {', '.join(configs) or 'it has none'}."
        f"{did_you_mean(config, configs)} Received: tfds={name}."
    )


def prepare(builder: Any, local_dir: str | os.PathLike | None = None, try_gcs: bool = False) -> None:
    """Download and prepare a data set unless it is prepared already.

    TFDS writes to a temporary folder and renames it, so a killed process leaves no incomplete data. If two processes
    prepare a data set at once, the first result is kept.
    """
    if not _is_prepared(builder):
        _download_and_prepare(builder, local_dir, try_gcs)
    # Another process can prepare the data after this builder was created. Mocks of TFDS are never prepared.
    if _is_prepared(builder):
        builder.info.read_from_directory(builder.data_dir)


def _is_prepared(builder):
    return builder.data_path.exists()  # TFDS renames a complete folder to this path


def _download_and_prepare(builder, local_dir, try_gcs):
    tfds = import_tfds()
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        tfds.disable_progress_bar()  # each update would add a line to the log
    config = tfds.download.DownloadConfig(manual_dir=local_dir, try_download_gcs=try_gcs)
    file_format = {} if has_tensorflow() else {"file_format": WITHOUT_TENSORFLOW}
    offline = (
        f"{builder.info.full_name} is downloaded on first use. Without a network, put the files of the download into a "
        "folder and set `local_dir` (in the trainers: --config.data.local_dir=FOLDER)"
    )
    try:
        # TFDS prints notes; standard output belongs to the calling program.
        with (
            _read_corpus_from(builder, local_dir),
            contextlib.redirect_stdout(sys.stderr),
            _warn_if_slow(offline),
            _log_level("urllib3.connectionpool"),  # ten warnings for an unreachable server
        ):
            builder.download_and_prepare(download_config=config, **file_format)
    except Exception as error:
        if _is_prepared(builder):  # another process was faster, and the rename failed
            return
        if isinstance(error, ModuleNotFoundError):
            raise ModuleNotFoundError(
                f"Preparing {builder.info.full_name} needs the package {error.name}: pip install "
                f"{str(error.name).replace('_', '-')}. Or read a prepared copy with `data_dir` or `try_gcs`.",
                name=error.name,
            ) from error
        reason = _disk_error(error, builder.data_dir_root)
        if reason is not None:
            raise OSError(
                f"`data_dir` must be a writable folder with room for {builder.info.full_name}. The incomplete data "
                f"were removed. Received: {builder.data_dir_root}, with {reason}."
            ) from error
        if _is_network_error(error):
            raise ConnectionError(f"{offline}. Received: {error}") from error
        raise


def _is_network_error(error):
    # TensorFlow, which reads buckets, has no exception class for network errors.
    return type(error).__module__.partition(".")[0] in NETWORK or "libcurl code" in str(error)


def _disk_error(error, root):
    """Return the reason if an error or one of its causes is a full or read-only disk, otherwise None."""
    tf: Any = sys.modules.get("tensorflow")  # imported if the error is from TensorFlow
    tensorflow_errors = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) if tf else ()
    while error is not None:
        # Whether the error concerns the data folder, not an input file.
        is_here = str(root) in str(getattr(error, "filename", None) or root)
        if isinstance(error, OSError) and error.errno in FULL_OR_READ_ONLY and is_here:
            return os.strerror(error.errno)
        if isinstance(error, tensorflow_errors):
            return str(error.message).rpartition(";")[2].strip()
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def _warn_if_slow(line):
    """Log a line if the block takes long: TFDS tries to reach a server for minutes without a log message."""
    timer = threading.Timer(WARNING_DELAY, logging.getLogger(__name__).warning, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _log_level(name):
    """Suppress the warnings of a logger."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _iterate(examples, builder):
    """Yield the examples of a prepared data set, or raise a `DamagedDataError` for damaged or missing files."""
    from google.protobuf import message

    errors: tuple[type[Exception], ...] = (message.DecodeError, ValueError, RuntimeError)
    if not _is_array_record(builder):
        import tensorflow as tf

        errors = (tf.errors.DataLossError, tf.errors.NotFoundError)
    with _convert_damage_errors(builder.data_dir, *errors):
        yield from examples


def _is_array_record(builder):
    return getattr(builder.info.file_format, "value", None) == WITHOUT_TENSORFLOW


@contextlib.contextmanager
def _convert_damage_errors(folder, *errors):
    """Convert errors of TFDS for damaged files into a `DamagedDataError` that names the folder to delete."""
    from google.protobuf import json_format

    try:
        yield
    except (json_format.ParseError, *errors) as error:
        # Remove the name of the op, which TensorFlow adds.
        reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", str(error).strip().split("\n")[0]).rstrip(".")
        raise DamagedDataError(folder, f"{folder}, with {reason}") from error


@contextlib.contextmanager
def _read_corpus_from(builder, local_dir):
    """Let the PG-19 builder read its corpus from a folder instead of the bucket. The builder has no argument for it."""
    if builder.name != "pg19" or local_dir is None:
        yield
        return
    module: Any = importlib.import_module(type(builder).__module__)
    bucket = module._DATA_DIR
    module._DATA_DIR = str(local_dir)
    try:
        yield
    finally:
        module._DATA_DIR = bucket


def _pg19_fingerprint(folder: pathlib.Path) -> str:
    """Return a hash, 16 hexadecimal digits, of a folder in the layout of gs://deepmind-gutenberg.

    TFDS keeps one PG-19 per data folder and version. So each local copy is prepared in a folder named after this hash,
    and different parts of the corpus do not mix.
    """
    missing = [name for name in ("metadata.csv", *SPLITS) if not (folder / name).exists()]
    if missing:
        raise ValueError(
            f"`local_dir` must have metadata.csv and the folders {', '.join(SPLITS)}. "
            f"Received: local_dir={folder}, without {', '.join(missing)}."
        )
    books = {split: list_texts(folder, (folder / split).glob("*.txt")) for split in SPLITS}
    return fingerprint_files(books, [content_digest((folder / "metadata.csv").read_bytes())])


# Names of text features by priority, for data sets with several strings, such as text and title.
TEXT_FEATURES = ("text", "book_text", "content", "document", "article", "story")
NOT_TEXT = ("id", "filename", "file_name", "image/filename", "url")  # string features that are not text


class TfdsReader:
    """A TFDS data set, prepared on first use. Made by `open_tfds`.

    Attributes:
        name: full name with configuration and version, such as "tiny_shakespeare/1.0.0".
        fingerprint: string that identifies the content and fields, also before the data set is prepared.
        fields: names of the features to read.
        features: `tfds.features.FeaturesDict` of the data set.
        data_dir: folder of TFDS, a string because it can be in a bucket.
    """

    def __init__(self, builder: Any, fields: Sequence[str], local_dir: str | None, try_gcs: bool, variant: str) -> None:
        self._builder, self._prepare = builder, functools.cache(lambda: prepare(builder, local_dir, try_gcs))
        self.name = builder.info.full_name
        self.fields, self.features = tuple(fields), builder.info.features
        self.fingerprint = f"{self.name}{variant}#{','.join(self.fields)}"
        self.data_dir = str(builder.data_dir_root)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits. Prepares the data set."""
        self._prepare()
        return tuple(self._builder.info.splits)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Iterate over the examples of a split, `bytes` for text and arrays for other features."""
        # Mocks of TFDS can have no splits.
        names = {term.split("[")[0].strip() for term in split.split("+")}
        if self.splits and not names <= {*self.splits, "all"}:
            raise split_error(split, self.name, self.splits)
        if _is_array_record(self._builder):
            examples = _iterate(self._builder.as_data_source(split=split), self._builder)
            return ({field: example[field] for field in self.fields} for example in examples)
        if not has_tensorflow():
            raise ImportError(
                f"Reading {self.name} needs TensorFlow, because it was prepared as "
                f"{self._builder.info.file_format.value}. Install TensorFlow, or prepare the data in another folder: "
                "set `data_dir` (in the trainers: --config.data.data_dir=FOLDER)."
            )
        # One file at a time: otherwise the order depends on the number of readers.
        config = import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = self._builder.as_dataset(split=split, shuffle_files=False, read_config=config)
        dataset = dataset.map(lambda example: {field: example[field] for field in self.fields}).prefetch(2)
        return _iterate(dataset.as_numpy_iterator(), self._builder)


def open_tfds(
    name: str | None,
    finders: Sequence[Callable[[Any], str]],
    data_dir: str | os.PathLike | None = None,
    local_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
) -> TfdsReader:
    """Open a TFDS data set; see `open_source`. `finders` return the names of the features to read from all features."""
    local: Any = None
    variant = ""
    if local_dir is not None:
        local = pathlib.Path(local_dir).expanduser().resolve()
        if not local.is_dir():
            raise ValueError(f"`local_dir` must be an existing folder. Received: local_dir={local_dir}.")
        if _base_name(str(name)) == "pg19":
            variant = f"@local_{_pg19_fingerprint(local)}"
            data_dir = os.path.join(data_folder(data_dir), variant[1:])
    builder = make_builder(name, data_dir, try_gcs)
    fields = [find(builder.info.features) for find in finders]
    return TfdsReader(builder, fields, local and str(local), try_gcs, variant)


def find_text_feature(features: Any, text_feature: str | None = None) -> str:
    """Return `text_feature` if it is a string feature, or raise a `ValueError`.

    For None, return the only string feature that is not a file name, id or URL. If there are several, return the first
    of text, book_text, content, document, article and story.
    """
    flat = _flat(features)
    # Nested features have a dictionary of shapes. The NumPy dtype of strings is object.
    scalars = {name: feature for name, feature in flat.items() if getattr(feature, "shape", None) == ()}
    strings = [name for name, feature in scalars.items() if np.dtype(feature.np_dtype) == object]
    if text_feature is None:
        texts = [name for name in strings if name not in NOT_TEXT]
        known = [name for name in TEXT_FEATURES if name in texts] or (texts if len(texts) == 1 else [])
        text_feature = known[0] if known else None
    if text_feature is None or text_feature not in strings:
        raise ValueError(
            "`text_feature` must be a string feature of the data set. "
            f"Received: text_feature={text_feature}, string features: {', '.join(strings) or 'none'}, "
            f"all features: {', '.join(flat) or features}."
        )
    return text_feature


def _find_media_feature(features, kind, item):
    """Return the name of the only feature of a kind ("Image", "Audio"); of several, return "image" or "audio"."""
    flat = _flat(features)
    names = [name for name, feature in flat.items() if isinstance(feature, getattr(import_tfds().features, kind))]
    if len(names) != 1 and kind.lower() not in names:
        raise ValueError(
            f"`tfds` must be a data set with {item} in each example. If there are several, one must be named "
            f"{kind.lower()!r}. Received: features {', '.join(flat) or features}."
        )
    return names[0] if len(names) == 1 else kind.lower()


find_image = functools.partial(_find_media_feature, kind="Image", item="an image")
find_audio = functools.partial(_find_media_feature, kind="Audio", item="a recording")


def _flat(features):
    return dict(features.items()) if hasattr(features, "items") else {}
