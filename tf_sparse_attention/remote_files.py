"""Files at addresses such as gs://bucket/folder, copied as a whole through `etils.epath`, which knows the schemes.

Nothing is renamed there, which is not atomic in a bucket: who writes several files writes last the one without which
the others do not count.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from tf_sparse_attention.atomic_files import atomic_file, atomic_folder

BLOCK = 1 << 22  # bytes that are copied at once
SAVED_MODEL = "saved_model.pb"  # the file without which a folder is no SavedModel
CACHE = "TSA_CACHE_DIR"  # the variable with the folder of local copies
# What TensorFlow says of schemes that it has no files of, and what to do.
NO_SCHEME, SCHEME_ADVICE = "File system scheme", "; set EPATH_USE_TF=false and install its package of fsspec, as s3fs"


class RemoteError(OSError):
    """Raised where a remote file cannot be read or written, whatever the library of its scheme raises."""


class Content(NamedTuple):
    """What a file holds: its size in bytes and its checksum, BLAKE2b of 16 bytes."""

    size: int
    blake2b: str


def is_remote(path: str | os.PathLike) -> bool:
    """Return whether a path is an address with a scheme, as gs://bucket/folder.

    Raises:
        ValueError: If it begins like one and lacks a slash, which would be a folder here that is called "gs:".
    """
    text = os.fspath(path)
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", text):  # a single letter is a drive
        raise ValueError(
            "`path` must have two slashes after its scheme, as in gs://bucket/folder, of which `pathlib.Path` leaves "
            f"one; a local path of this name begins with ./. Received: path={text}."
        )
    return "://" in text


def remote_path(address: str | os.PathLike) -> Any:
    """Return the `epath.Path` of an address.

    Raises:
        ValueError: If its scheme is unknown.
        ImportError: If etils is not installed.
    """
    try:
        from etils import epath
    except ImportError as error:
        raise ImportError(f"{address} needs etils: `pip install 'etils[epath]'`.") from error
    try:
        return epath.Path(address)
    except KeyError as error:
        raise ValueError(
            "`path` must be on a local disk, or have a scheme that `etils.epath` knows, as gs, s3, az and hf. "
            f"Received: path={address}."
        ) from error


def cache_folder(address: str | os.PathLike) -> pathlib.Path:
    """Return the folder of the local copy of what is at an address.

    It is in the folder that the variable TSA_CACHE_DIR names, otherwise in ~/.cache/tf_sparse_attention.
    """
    root = pathlib.Path(os.environ.get(CACHE) or "~/.cache/tf_sparse_attention").expanduser()
    text = os.fspath(address).rstrip("/")
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return root / f"{re.sub('[^A-Za-z0-9]+', '_', text)[-80:]}_{digest}"


def as_path(path: str | os.PathLike) -> Any:
    """Return the `epath.Path` of an address, or the `pathlib.Path` of a path on the local disk."""
    return remote_path(path) if is_remote(path) else pathlib.Path(path).expanduser()


@contextlib.contextmanager
def raise_remote_errors(path: Any) -> Iterator[None]:
    """Convert the errors of a block that reads or writes a remote path into a `RemoteError` of one line."""
    try:
        yield
    except Exception as error:  # those of TensorFlow, of gcsfs, of aiohttp and so on
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)  # the disk here
        if isinstance(error, RemoteError) or is_full or not is_remote(path):
            raise
        lines = str(error).strip().splitlines() or [""]
        advice = SCHEME_ADVICE if lines[0].startswith(NO_SCHEME) else ""
        raise RemoteError(f"{path} cannot be reached: {type(error).__name__}: {lines[0]}{advice}") from error


def exists(path: Any) -> bool:
    """Return whether there is a remote file or folder."""
    with raise_remote_errors(path):
        return path.exists()


def read_bytes(path: Any) -> bytes | None:
    """Return the content of a remote file; None if there is none."""
    with raise_remote_errors(path):
        if not path.exists():
            return None
        with path.open("rb") as file:
            return file.read()


def names(path: Any) -> list[str]:
    """Return the names in a remote folder, in order; none if it is missing."""
    with raise_remote_errors(path):
        return sorted(child.name for child in path.iterdir()) if path.exists() else []


def remove(path: Any) -> None:
    """Remove a remote file, if it is there."""
    with raise_remote_errors(path):
        path.unlink(missing_ok=True)


def write_bytes(path: Any, content: bytes) -> None:
    """Write a remote file."""
    with raise_remote_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)


def upload(source: pathlib.Path, target: Any) -> Content:
    """Copy a local file to a remote path, and returns what was copied."""
    with open(source, "rb") as content, raise_remote_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            return _copy(content, file)


def download(source: Any, target: pathlib.Path, expected: Content | None = None) -> None:
    """Copy a remote file to a local one, which is complete or absent.

    Args:
        source: remote path.
        target: the local file; its folder is created.
        expected: what the file has to hold. Default: None, anything.

    Raises:
        ValueError: If it holds something else, or is missing.
        RemoteError: If it cannot be reached.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as temporary:
        found = None
        if exists(source):
            with open(temporary, "wb") as file, raise_remote_errors(source), source.open("rb") as content:
                found = _copy(content, file)
        if found is None or expected not in (None, found):
            raise ValueError(f"{source} is {'missing' if found is None else 'damaged'}")


def _copy(source, target):
    size, digest = 0, hashlib.blake2b(digest_size=16)
    while block := source.read(BLOCK):
        target.write(block)
        digest.update(block)
        size += len(block)
    return Content(size, digest.hexdigest())


def upload_folder(source: pathlib.Path, target: Any, last: str | None = None) -> None:
    """Copy a local folder to a remote one, in place of what is there.

    Args:
        source: the folder.
        target: remote path.
        last: name of the file without which the others do not count, as that of a SavedModel. It is removed first and
            written last, so that readers find all of an export or none. Default: None, there is none.
    """
    files = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
    before = set(stat_all(target))
    if last is not None:
        remove(target / last)
    for name in sorted(files, key=lambda name: name == last):
        upload(files[name], target / name)
    for name in sorted(before - set(files)):
        remove(target / name)


def stat_all(path: Any) -> dict[str, list[int]]:
    """Return size and time in seconds of all files in a remote folder and in those in it, by name.

    The name of a file that is not in a folder is "". Nothing is returned where nothing is.
    """
    with raise_remote_errors(path):
        if not path.exists():
            return {}
        if not path.is_dir():
            status = path.stat()
            return {"": [int(status.length), int(status.mtime)]}
    found = {name: stat_all(path / name) for name in names(path)}
    return {f"{name}/{rest}".rstrip("/"): status for name, files in found.items() for rest, status in files.items()}


@contextlib.contextmanager
def output_folder(path: Any, last: str | None = None) -> Iterator[pathlib.Path]:
    """Yield a local path to create a folder at, which replaces `path` if the block ends without an error.

    Args:
        path: a `pathlib.Path`, see `atomic_folder`, or a remote path, see `upload_folder`.
        last: see `upload_folder`.
    """
    if not is_remote(path):
        with atomic_folder(path) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder) / "new"
        upload_folder(pathlib.Path(folder) / "new", path, last)
