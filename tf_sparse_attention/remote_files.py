"""Remote files such as gs://bucket/folder, copied as a whole through `etils.epath`.

A file is complete or absent. A folder cannot be renamed in a bucket, so the file that marks a folder as complete is
written last.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from tf_sparse_attention.atomic_files import atomic_file, atomic_folder

BLOCK = 1 << 22  # bytes per read
SAVED_MODEL = "saved_model.pb"  # marks a SavedModel as complete
CACHE = "TSA_CACHE_DIR"  # environment variable with the folder of local copies
# Start of TensorFlow's message for an unsupported scheme, and the advice to append.
NO_SCHEME, SCHEME_ADVICE = "File system scheme", "; set EPATH_USE_TF=false and install its fsspec package, e.g. s3fs"


class RemoteError(OSError):
    """Raised if a remote file cannot be read or written."""


def is_remote(path: str | os.PathLike) -> bool:
    """Return whether a path has a scheme, for example gs://bucket/folder.

    Raises:
        ValueError: If the scheme is followed by one slash only, which would be a local folder named "gs:".
    """
    text = os.fspath(path)
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", text):  # one letter: a Windows drive
        raise ValueError(
            "`path` must have two slashes after its scheme, as in gs://bucket/folder; `pathlib.Path` removes one of "
            f"them. Write ./ before a local path of this name. Received: path={text}."
        )
    return "://" in text


def remote_path(address: str | os.PathLike) -> Any:
    """Return the `epath.Path` of a remote path.

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
            "`path` must be on a local disk, or have a scheme that `etils.epath` supports: gs, s3, az or hf. "
            f"Received: path={address}."
        ) from error


def cache_folder(address: str | os.PathLike) -> pathlib.Path:
    """Return the folder of the local copy of a remote path.

    It is in the folder of the environment variable TSA_CACHE_DIR, by default ~/.cache/tf_sparse_attention.
    """
    root = pathlib.Path(os.environ.get(CACHE) or "~/.cache/tf_sparse_attention").expanduser()
    text = os.fspath(address).rstrip("/")
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return root / f"{re.sub('[^A-Za-z0-9]+', '_', text)[-80:]}_{digest}"


def as_path(path: str | os.PathLike) -> Any:
    """Return an `epath.Path` for a remote path, or a `pathlib.Path` for a local path."""
    return remote_path(path) if is_remote(path) else pathlib.Path(path).expanduser()


@contextlib.contextmanager
def raise_remote_errors(path: Any) -> Iterator[None]:
    """Convert errors of a block that reads or writes a remote path to a `RemoteError` with one line."""
    try:
        yield
    except Exception as error:  # of TensorFlow, gcsfs, aiohttp and others
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)  # of the local disk
        if isinstance(error, RemoteError) or is_full or not is_remote(path):
            raise
        lines = str(error).strip().splitlines() or [""]
        advice = SCHEME_ADVICE if lines[0].startswith(NO_SCHEME) else ""
        raise RemoteError(f"{path} cannot be reached: {type(error).__name__}: {lines[0]}{advice}") from error


def exists(path: Any) -> bool:
    """Return whether a remote file or folder exists."""
    with raise_remote_errors(path):
        return path.exists()


def names(path: Any) -> list[str]:
    """Return the sorted names in a remote folder; an empty list if it does not exist."""
    with raise_remote_errors(path):
        return sorted(child.name for child in path.iterdir()) if path.exists() else []


def remove(path: Any) -> None:
    """Remove a remote file if it exists."""
    with raise_remote_errors(path):
        path.unlink(missing_ok=True)


def write_bytes(path: Any, content: bytes) -> None:
    """Write a remote file."""
    with raise_remote_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)


def upload(source: pathlib.Path, target: Any) -> None:
    """Copy a local file to a remote path, through a file NAME.incomplete that is then renamed."""
    with open(source, "rb") as content, raise_remote_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        incomplete = target.with_name(f"{target.name}.incomplete")
        with incomplete.open("wb") as file:
            shutil.copyfileobj(content, file, BLOCK)
        incomplete.replace(target)


def download(source: Any, target: pathlib.Path) -> None:
    """Copy a remote file to a local file, which is complete or absent afterwards. Its folder is created."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(target) as temporary,
        open(temporary, "wb") as file,
        raise_remote_errors(source),
        source.open("rb") as content,
    ):
        shutil.copyfileobj(content, file, BLOCK)


def upload_folder(source: pathlib.Path, target: Any, last: str | None = None) -> None:
    """Copy a local folder to a remote folder, and remove other files there.

    `last` is the name of the file that marks the folder as complete, as in a SavedModel. It is removed first and
    written last, so that readers find a complete export or none.
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
    """Return size in bytes and modification time in seconds of all files below a remote path, by relative name.

    If the path is a file, its name is "". If it does not exist, the result is empty.
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
    """Yield a local path for a folder, which replaces `path` if the block ends without an error.

    `path` is a `pathlib.Path`, see `atomic_folder`, or a remote path, see `upload_folder`.
    """
    if not is_remote(path):
        with atomic_folder(path) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder) / "new"
        upload_folder(pathlib.Path(folder) / "new", path, last)
