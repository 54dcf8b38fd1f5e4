"""Folders of arrays on disk: written atomically, checked, and memory-mapped."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from tf_sparse_attention import remote_files
from tf_sparse_attention.atomic_files import add_path_to_errors, atomic_folder, remove_stale

METADATA = "metadata.json"  # written last, so a folder with this file is complete
FORMAT = 2
UPLOADED = "uploaded"  # empty file that marks a local copy of a remote store
BLOCK = 1 << 22  # bytes per read
_checked: set[tuple[Any, ...]] = set()  # files whose checksums this process has verified


class DamagedDataError(ValueError):
    """Error for prepared data that are damaged or incomplete, which says to delete `remove`."""

    def __init__(self, remove: str | os.PathLike, problem: str) -> None:
        super().__init__(remove, problem)
        self.remove, self.problem = remove, problem

    def __str__(self) -> str:
        return f"Prepared data must be intact; delete {self.remove} to prepare them again. Received: {self.problem}."


class ArrayStore:
    """Arrays and metadata of a split of a data set. All checksums are verified once per process.

    Args:
        folder: folder of the store.

    Attributes:
        metadata: dictionary with "identity" and the metadata from `write`; see `open`.
        arrays: read-only `np.memmap` by name.

    Raises:
        DamagedDataError: If the folder is damaged or incomplete.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        folder = pathlib.Path(folder)
        self.metadata = _read_metadata(folder)
        self.arrays = {name: _open_array(folder, name, saved) for name, saved in self.metadata["arrays"].items()}

    @classmethod
    def open(
        cls,
        root: str | os.PathLike,
        name: str,
        identity: dict[str, Any],
        write: Callable[["ArrayWriter"], dict[str, Any]],
    ) -> Self:
        """Open the store of a data set, and write it first if it does not exist.

        The folder name contains a hash of `identity`, so each data set has a separate store. A store is written to a
        temporary folder, which is then renamed. A killed process leaves no incomplete store. If two processes write a
        store at the same time, one of the two stores is kept. If `root` is a remote path such as gs://bucket/stores, a
        local copy is read, and a new store is uploaded.

        Args:
            root: folder of all stores.
            name: readable part of the folder name.
            identity: JSON-serializable data that identifies the content.
            write: function that writes the arrays with an `ArrayWriter` and returns more metadata, JSON-serializable.

        Raises:
            DamagedDataError: If the store is damaged or incomplete, or has another identity.
        """
        digest = hashlib.blake2b(json.dumps([FORMAT, identity], sort_keys=True).encode(), digest_size=8).hexdigest()
        name = f"{re.sub('[^A-Za-z0-9]+', '_', name)}_{digest}"
        if not remote_files.is_remote(root):
            return cls._open_local(pathlib.Path(root).expanduser() / name, identity, write)
        remote = remote_files.remote_path(root) / name
        local = remote_files.cache_folder(root) / name
        try:
            if not local.exists():
                _download(remote, local)
            store = cls._open_local(local, identity, write)
        except DamagedDataError:
            if not (local / UPLOADED).exists():
                raise
            shutil.rmtree(local)  # Either the copy or the remote store is damaged.
            _download(remote, local)
            try:
                store = cls._open_local(local, identity, write)
            except DamagedDataError as error:
                raise DamagedDataError(remote, error.problem) from error
        if not (local / UPLOADED).exists():
            remote_files.upload_folder(local, remote, METADATA)
            (local / UPLOADED).touch()
        return store

    @classmethod
    def _open_local(cls, folder: pathlib.Path, identity: Mapping, write: Callable) -> Self:
        if not (folder / METADATA).exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            remove_stale(folder.parent)
            with atomic_folder(folder) as temporary:
                temporary.mkdir()
                with ArrayWriter(temporary) as writer:
                    writer.finish({"identity": identity, **write(writer)})
        store = cls(folder)
        saved, expected = store.metadata["identity"], json.loads(json.dumps(identity))  # tuples become lists
        for key in {**expected, **saved}:
            if saved.get(key) != expected.get(key):
                problem = f"{folder}, with {key}={saved.get(key)!r} instead of {expected.get(key)!r}"
                raise DamagedDataError(folder, problem)
        return store


class ArrayWriter:
    """Context manager that writes the arrays of a store into an empty folder, piece by piece."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._saved: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows (n, ...) to an array. All rows must have the same dtype and shape."""
        rows = np.ascontiguousarray(rows)
        if name not in self._files:
            self._files[name] = (self._folder / f"{name}.bin").open("wb")
            self._saved[name] = {"dtype": rows.dtype.name, "shape": [0, *rows.shape[1:]], "crc32": 0}
        saved, content = self._saved[name], rows.tobytes()
        with add_path_to_errors(self._folder / f"{name}.bin"):
            self._files[name].write(content)
        saved["crc32"] = zlib.crc32(content, saved["crc32"])
        saved["shape"][0] += len(rows)

    def num_rows(self, name: str) -> int:
        """Return the number of rows that were appended to an array."""
        return self._saved[name]["shape"][0]

    def finish(self, metadata: dict[str, Any]) -> None:
        """Flush all arrays to the disk, then write the metadata."""
        for name, file in self._files.items():
            with add_path_to_errors(self._folder / f"{name}.bin"):
                _sync(file)
        content = {"format": FORMAT, "arrays": self._saved, **metadata}
        with add_path_to_errors(self._folder / METADATA), (self._folder / METADATA).open("w", encoding="utf-8") as file:
            file.write(json.dumps({"content": content, "crc32": _checksum(content)}, indent=1) + "\n")
            _sync(file)


def _sync(file):
    file.flush()
    os.fsync(file.fileno())


def _checksum(content):
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _read_metadata(folder):
    path = folder / METADATA
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        content = saved["content"]
        if saved["crc32"] != _checksum(content) or content["format"] != FORMAT:
            raise ValueError("invalid content")
    except FileNotFoundError as error:
        raise DamagedDataError(folder, f"{path}, which is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDataError(folder, f"{path}, with invalid content") from error
    return content


def _open_array(folder, name, saved):
    path, shape = folder / f"{name}.bin", tuple(saved["shape"])
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise DamagedDataError(folder, f"{path}, which is missing") from error
    size = int(np.prod(shape, dtype="int64")) * np.dtype(saved["dtype"]).itemsize
    key = (str(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns, saved["crc32"])
    if status.st_size != size or (key not in _checked and _crc32(path) != saved["crc32"]):
        raise DamagedDataError(folder, f"{path}, with invalid content")
    _checked.add(key)
    # An empty file cannot be mapped.
    return np.memmap(path, saved["dtype"], "r", shape=shape) if size else np.zeros(shape, saved["dtype"])


def _crc32(path):
    value = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return value


def _download(remote, local):
    """Copy a remote store to a local folder, unless the store is incomplete."""
    if remote_files.exists(remote / METADATA):
        with atomic_folder(local) as temporary:
            temporary.mkdir()
            for name in remote_files.names(remote):
                remote_files.download(remote / name, temporary / name)
            (temporary / UPLOADED).touch()
