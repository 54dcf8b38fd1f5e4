"""The folder of data sets, and local copies of remote data, such as gs://bucket/books."""

import os
from typing import Any

from tf_sparse_attention import remote_files


def data_folder(data_dir: str | os.PathLike | None = None) -> str:
    """Return `data_dir`, or the default of TFDS: the environment variable TFDS_DATA_DIR or ~/tensorflow_datasets."""
    default = os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets"))
    return os.path.expanduser(default if data_dir is None else data_dir)


def local_path(path: Any) -> Any:
    """Copy a remote file or folder, and return the path of the copy. Return local paths and None unchanged.

    Copies have the modification times of the remote files, in seconds. As in rsync, a file is copied again only if its
    size or its time differ. If a remote file no longer exists, its copy is deleted. Copies are in
    `remote_files.cache_folder`.
    """
    if path is None or not remote_files.is_remote(path):
        return path
    remote = remote_files.remote_path(path)
    target = remote_files.cache_folder(path) / remote.name
    statuses = remote_files.stat_all(remote)
    if not statuses:
        raise ValueError(f"`path` must be an existing folder or file. Received: path={path}.")
    for name, (size, modified) in statuses.items():
        file = _join(target, name)
        status = file.stat() if file.exists() else None
        if status is None or (status.st_size, int(status.st_mtime)) != (size, modified):
            remote_files.download(_join(remote, name), file)
            os.utime(file, (modified, modified))
    for file in sorted(target.rglob("*")):
        if file.is_file() and file.relative_to(target).as_posix() not in statuses:
            file.unlink()
    return target


def _join(folder, name):
    """Return `folder / name`, or `folder` for the name "" (the copy is a single file)."""
    return folder / name if name else folder
