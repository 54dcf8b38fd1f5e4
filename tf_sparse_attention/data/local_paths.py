"""Local copies of data at remote paths such as gs://bucket/books."""

import json
import os
import pathlib
from typing import Any

from tf_sparse_attention import remote_files
from tf_sparse_attention.atomic_files import atomic_file

COPIED = "copied.json"  # next to a copy: size and time of each file and of its copy


def local_path(path: Any) -> Any:
    """Return the path of a local copy of a remote file or folder, or a local path unchanged.

    A file is copied if its size or time, or that of its copy, changed since the last time. A copy is removed if its
    file was. Copies are in `remote_files.cache_folder`.

    Args:
        path: a local path, a remote path, or None.

    Raises:
        ValueError: If the remote path does not exist.
        RemoteError: If it cannot be reached.
    """
    if path is None or not remote_files.is_remote(path):
        return path
    remote, root = remote_files.remote_path(path), remote_files.cache_folder(path)
    found = remote_files.stat_all(remote)
    if not found:
        raise ValueError(f"`path` must be an existing folder or file. Received: path={path}.")
    target, record = root / remote.name, root / COPIED
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    try:
        for name, status in found.items():
            file = _below(target, name)
            if known.get(name) != [status, _status(file)]:
                remote_files.download(_below(remote, name), file)
                known[name] = [status, _status(file)]
    finally:  # files that were copied before an interruption are not copied again
        root.mkdir(parents=True, exist_ok=True)
        with atomic_file(record) as temporary:
            temporary.write_text(json.dumps({name: known[name] for name in found if name in known}), encoding="utf-8")
    for file in sorted(target.rglob("*")):
        if file.is_file() and file.relative_to(target).as_posix() not in found:
            file.unlink()
    return target


def _below(folder, name):
    """Return the file of a name in a folder, or `folder` itself, a file, for the name ""."""
    return folder / name if name else folder


def _status(file: pathlib.Path) -> list[int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
