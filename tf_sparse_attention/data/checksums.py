"""Checksums of prepared data, by which damaged and exchanged files are found before they are read."""

import json
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

from tf_sparse_attention.atomic_files import atomic_file

FILE = "checksums.json"
BLOCK = 1 << 22  # bytes that are read at once
# Files that this process has checked, with what changes when they are written: one is read once, not at every opening.
_checked: set[tuple[Any, ...]] = set()


class DamagedDataError(ValueError):
    """Raised for prepared data that are not what was written; they are never prepared again without a word."""


def write_checksums(path: str | os.PathLike, files: Mapping[str, pathlib.Path], identity: Any) -> None:
    """Writes the checksums of complete files: CRC-32, which reads 2 GB a second.

    Args:
        path: the file of the checksums.
        files: those to be checked, by the name that they will have beside it.
        identity: plain data that says what the files hold, the name of the split among them.
    """
    content = {"identity": identity, "crc32": {name: _crc32(file) for name, file in files.items()}}
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check(path: str | os.PathLike, remove: str | os.PathLike, identity: Any = None) -> None:
    """Compare files with their checksums.

    Args:
        path: the file of the checksums, beside those that it is about.
        remove: what a person has to delete so that the data are prepared again.
        identity: what the files have to hold. Default: None, anything.

    Raises:
        DamagedDataError: For the first file that is not what was written, or files of something else, as of another
            split.
    """
    path = pathlib.Path(path)
    saved, sums = _read(path, remove)
    wanted = json.loads(json.dumps(identity))  # tuples become lists
    if wanted not in (None, saved):
        raise DamagedDataError(message(remove, f"{path.parent}, with {_difference(saved, wanted)}"))
    for name, value in sums.items():
        status = (path.parent / name).stat()
        seen = (str(path.absolute()), name, status.st_ino, status.st_size, status.st_mtime_ns, value)
        if seen not in _checked and _crc32(path.parent / name) != value:
            raise DamagedDataError(message(remove, f"{path.parent / name}, with another content"))
        _checked.add(seen)


def _read(path, remove):
    """Returns identity and checksums by name."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return saved["identity"], dict(saved["crc32"])
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        found = f"{path}, which is {'damaged' if path.exists() else 'missing'}"
        raise DamagedDataError(message(remove, found)) from error


def message(remove: str | os.PathLike, found: str) -> str:
    """Returns the message about prepared data that are not what was written."""
    return f"Prepared data must be as they were written; delete {remove} to prepare them again. Received: {found}."


def _difference(saved, wanted):
    if not (isinstance(saved, dict) and isinstance(wanted, dict)):
        return "other data"
    name = next(name for name in {**wanted, **saved} if saved.get(name) != wanted.get(name))
    return f"{name}={saved.get(name)!r} instead of {wanted.get(name)!r}"


def _crc32(file):
    value = 0
    with open(file, "rb") as content:
        while block := content.read(BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
