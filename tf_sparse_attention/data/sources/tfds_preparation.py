"""Prepares TFDS data sets, from local files where possible."""

import contextlib
import errno
import importlib
import logging
import os
import pathlib
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from tf_sparse_attention.backends import has_tensorflow
from tf_sparse_attention.data import checksums
from tf_sparse_attention.data.optional import data_folder, import_tfds
from tf_sparse_attention.data.sources.file_splits import SPLITS, content_digest, fingerprint_files, list_text_files

SECONDS_OF_SILENCE = 20.0
FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
NETWORK = ("requests", "urllib3", "httpx", "httpcore", "huggingface_hub")  # libraries of TFDS
WITHOUT_TENSORFLOW = "array_record"  # the format of TFDS that is written and read without TensorFlow
FORMAT = {"file_format": WITHOUT_TENSORFLOW}


def prepare(builder: Any, local_dir: str | os.PathLike | None = None, try_gcs: bool = False) -> None:
    """Downloads and prepares a data set unless it is prepared already.

    TFDS writes to a temporary folder and renames it, so a killed preparation leaves nothing that would be read. If
    two processes prepare one data set at once, both work and the second one uses the result of the first.

    Args:
        builder: `tfds.core.DatasetBuilder`.
        local_dir: folder with the files that the builder would download; see `text_source.open_source`.
        try_gcs: whether a prepared copy may come from the public bucket of TFDS.
    """
    if not _is_prepared(builder):
        _download_and_prepare(builder, local_dir, try_gcs)
    # Even if it was prepared already: another process may have prepared it after this builder was made.
    if _is_prepared(builder):  # not of a stand-in, `tfds.testing.mock_data`
        builder.info.read_from_directory(builder.data_dir)


def _download_and_prepare(builder, local_dir, try_gcs):
    tfds = import_tfds()
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        tfds.disable_progress_bar()  # In a log each redraw of a bar is another line.
    config = tfds.download.DownloadConfig(manual_dir=local_dir, try_download_gcs=try_gcs)
    offline = (
        f"{builder.info.full_name} is downloaded on first use. Without a network put the files that its builder would "
        "download into a folder, and name it: `local_dir`, for the trainers --config.data.local_dir=FOLDER"
    )
    try:
        # TFDS prints notes for a person; standard output belongs to the program that calls.
        with (
            _read_corpus_from(builder, local_dir),
            contextlib.redirect_stdout(sys.stderr),
            _said_if_slow(offline),
            _without_retries_in_log(),
        ):
            builder.download_and_prepare(download_config=config, **({} if has_tensorflow() else FORMAT))
    except Exception as error:
        if _is_prepared(builder):  # Another process won, and renaming ours failed.
            return
        if isinstance(error, ModuleNotFoundError):
            raise ModuleNotFoundError(
                f"Preparing {builder.info.full_name} needs the package {error.name}: pip install "
                f"{str(error.name).replace('_', '-')}. Or read a prepared copy: `data_dir`, `try_gcs`.",
                name=error.name,
            ) from error
        refused = _refused_by_disk(error, builder.data_dir_root)
        if refused is not None:
            raise OSError(
                f"`data_dir` must be a folder with room for {builder.info.full_name}, in which files can be written. "
                f"Nothing is left of what was begun. Received: {builder.data_dir_root}, with {refused}."
            ) from error
        if is_of_network(error):
            raise ConnectionError(f"{offline}. Received: {error}") from error
        raise


def is_of_network(error: Exception) -> bool:
    """Returns whether an error is that of a library which could not reach a server."""
    # TensorFlow, which reads buckets, has no class of its own for this.
    return type(error).__module__.partition(".")[0] in NETWORK or "libcurl code" in str(error)


@contextlib.contextmanager
def _without_retries_in_log():
    """Suppresses the ten warnings of a server that cannot be reached; `_said_if_slow` and the error say what to do."""
    logger = logging.getLogger("urllib3.connectionpool")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _refused_by_disk(error, root):
    """Returns what a disk that is full or read-only said, of an error or what led to it; None if it was another."""
    tf: Any = sys.modules.get("tensorflow")  # imported where an error is TensorFlow's, and maybe not installed
    of_tensorflow = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) if tf else ()
    while error is not None:
        is_here = str(root) in str(getattr(error, "filename", None) or root)  # and not a file that is read
        if isinstance(error, OSError) and error.errno in FULL_OR_READ_ONLY and is_here:
            return os.strerror(error.errno)
        if isinstance(error, of_tensorflow):
            return str(error.message).rpartition(";")[2].strip()
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def _said_if_slow(line):
    """Logs a line if what happens inside takes long: TFDS tries for minutes to reach a server, without a word."""
    timer = threading.Timer(SECONDS_OF_SILENCE, logging.getLogger(__name__).warning, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_prepared(builder):
    # TFDS makes this folder with one rename, so it is complete.
    return builder.data_path.exists()


@contextlib.contextmanager
def making_builder(data_dir: str | os.PathLike | None) -> Iterator[None]:
    """Suppresses the warning that TFDS logs about every data set that is not in its own list.

    Args:
        data_dir: the folder of TFDS, named where the description of a prepared data set in it is damaged. None: the
            default one.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with damage_named(f"the folder of the data set in {data_folder(data_dir)}"):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def damage_named(folder: str | os.PathLike, *errors: type[Exception]) -> Iterator[None]:
    """Turns what TFDS raises for damaged files into an error that says what to delete.

    Args:
        folder: what that is.
        *errors: further ones that mean damage.

    Raises:
        DamagedDataError: for records and descriptions that cannot be read.
    """
    from google.protobuf import json_format

    if has_tensorflow():
        import tensorflow as tf

        errors = (tf.errors.DataLossError, *errors)
    try:
        yield
    except (json_format.ParseError, *errors) as error:
        # Without the name of the operation, which TensorFlow writes around it.
        reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", str(error).strip().split("\n")[0]).rstrip(".")
        raise checksums.DamagedDataError(checksums.message(folder, f"{folder}, with {reason}")) from error


def iterate(examples: Iterable[Any], builder: Any) -> Iterator[Any]:
    """Yields the examples of a prepared data set; damaged or missing files are an error, see `damage_named`."""
    from google.protobuf import message

    errors: tuple[type[Exception], ...] = (message.DecodeError, ValueError, RuntimeError)  # of the format array_record
    if not is_array_record(builder):
        import tensorflow as tf

        errors = (tf.errors.NotFoundError,)
    with damage_named(builder.data_dir, *errors):
        yield from examples


def is_array_record(builder: Any) -> bool:
    """Returns whether a prepared data set has the format that is read without TensorFlow."""
    return getattr(builder.info.file_format, "value", None) == WITHOUT_TENSORFLOW


@contextlib.contextmanager
def _read_corpus_from(builder, local_dir):
    """Makes the PG-19 builder, which has no argument for it, read its corpus from a folder instead of the bucket."""
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


def pg19_fingerprint(local_dir: str | os.PathLike) -> str:
    """Returns a hash, 16 hexadecimal digits, of the content of a folder in the layout of gs://deepmind-gutenberg.

    TFDS keeps one PG-19 for a data folder and version. A part of the corpus must never be taken for the whole or for
    another part, so each local copy is prepared in a folder named after this.

    Args:
        local_dir: folder with metadata.csv and the folders train, validation and test.

    Raises:
        ValueError: If one of them is missing.
    """
    folder = pathlib.Path(local_dir)
    missing = [name for name in ("metadata.csv", *SPLITS) if not (folder / name).exists()]
    if missing:
        raise ValueError(
            f"`local_dir` must have metadata.csv and the folders {', '.join(SPLITS)}. "
            f"Received: local_dir={local_dir}, without {', '.join(missing)}."
        )
    books = fingerprint_files(list_text_files(folder, folder.glob("*/*.txt")))
    return content_digest(books.encode() + (folder / "metadata.csv").read_bytes())[:16]
