"""Local copies of texts, images and sound that are at an address such as gs://bucket/books."""

import json
import os
import pathlib
from typing import Any

from tf_sparse_attention import remote_files
from tf_sparse_attention.atomic_files import atomic_file

COPIED = "copied.json"  # beside a copy: size and time of each file, there and here


def local_path(path: Any) -> Any:
    """Returns a path as it is, unless it is an address: then that of a local copy, see `remote_files.cache_folder`.

    A file is copied where its size or time differ from those of the last time, there or here, and removed where it is
    gone from the address.

    Args:
        path: a path, an address of a file or a folder, or None.

    Raises:
        ValueError: If nothing is at the address.
        RemoteError: If it cannot be reached.
    """
    if path is None or not remote_files.is_remote(path):
        return path
    place, root = remote_files.remote_path(path), remote_files.cache_folder(path)
    found = remote_files.stat_all(place)
    if not found:
        raise ValueError(f"`path` must be an existing folder or file. Received: path={path}.")
    target, record = root / place.name, root / COPIED
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    try:
        for name, status in found.items():
            file = _below(target, name)
            if known.get(name) != [status, _status(file)]:
                remote_files.download(_below(place, name), file)
                known[name] = [status, _status(file)]
    finally:  # what was copied before an interruption is not copied again
        root.mkdir(parents=True, exist_ok=True)
        with atomic_file(record) as temporary:
            temporary.write_text(json.dumps({name: known[name] for name in found if name in known}), encoding="utf-8")
    for file in sorted(target.rglob("*")):
        if file.is_file() and file.relative_to(target).as_posix() not in found:
            file.unlink()
    return target


def _below(folder, name):
    """Returns the file of a name in a folder; "" is a file that is no folder."""
    return folder / name if name else folder


def _status(file: pathlib.Path) -> list[int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
