"""The folder of data sets, and local copies of remote data, such as gs://bucket/books."""

import json
import os
import pathlib
from typing import Any

from tf_sparse_attention import remote_files
from tf_sparse_attention.atomic_files import atomic_file

COPIED = "copied.json"  # file next to the copies: status of each remote file and of its copy


def data_folder(data_dir: str | os.PathLike | None = None) -> str:
    """Return `data_dir`, or the default of TFDS: the environment variable TFDS_DATA_DIR or ~/tensorflow_datasets."""
    default = os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets"))
    return os.path.expanduser(default if data_dir is None else data_dir)


def local_path(path: Any) -> Any:
    """Copy a remote file or folder, and return the path of the copy. Return local paths and None unchanged.

    A file is copied again only if the size or modification time of the file or of its copy has changed. If a remote
    file no longer exists, its copy is deleted. Copies are in `remote_files.cache_folder`.
    """
    if path is None or not remote_files.is_remote(path):
        return path
    remote, root = remote_files.remote_path(path), remote_files.cache_folder(path)
    statuses = remote_files.stat_all(remote)
    if not statuses:
        raise ValueError(f"`path` must be an existing folder or file. Received: path={path}.")
    target, record = root / remote.name, root / COPIED
    copied = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    try:
        for name, status in statuses.items():
            file = _join(target, name)
            if copied.get(name) != [status, _status(file)]:
                remote_files.download(_join(remote, name), file)
                copied[name] = [status, _status(file)]
    finally:  # after an interruption, do not copy these files again
        root.mkdir(parents=True, exist_ok=True)
        with atomic_file(record) as temporary:
            record_content = {name: copied[name] for name in statuses if name in copied}
            temporary.write_text(json.dumps(record_content), encoding="utf-8")
    for file in sorted(target.rglob("*")):
        if file.is_file() and file.relative_to(target).as_posix() not in statuses:
            file.unlink()
    return target


def _join(folder, name):
    """Return `folder / name`, or `folder` for the name "" (the copy is a single file)."""
    return folder / name if name else folder


def _status(file: pathlib.Path) -> list[int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
