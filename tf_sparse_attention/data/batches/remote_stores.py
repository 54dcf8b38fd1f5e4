"""Stores at an address such as gs://bucket/stores: read from a local copy, and copied there once they are built."""

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from tf_sparse_attention import remote_files
from tf_sparse_attention.atomic_files import atomic_folder
from tf_sparse_attention.data import checksums

COPIED = "copied"  # an empty file in a local copy that is at the address too


def open_copy(address: str | os.PathLike, name: str, open_local: Callable[[pathlib.Path], Any]) -> Any:
    """Opens the local copy of a store, which is fetched first, or built and copied to the address.

    A store counts at the address once its checksums are there, which are written last. A local copy that is damaged is
    fetched again. It is never compared with what is at the address, since the name says what a store holds.

    Args:
        address: folder of all stores.
        name: of the store in it.
        open_local: function of the local folder of all stores that opens this one, and builds it if it is not there.

    Raises:
        DamagedDataError: If what is at the address is not what was written.
        RemoteError: If it cannot be reached.
    """
    root, place = remote_files.cache_folder(address), remote_files.remote_path(address) / name
    local = root / name
    if not (local / checksums.FILE).exists():
        _fetch(place, local)
    try:
        store = open_local(root)
    except checksums.DamagedDataError:
        if not (local / COPIED).exists():
            raise
        shutil.rmtree(local)
        _fetch(place, local)
        try:
            store = open_local(root)
        except checksums.DamagedDataError as error:  # another store, that was moved to the place of this one
            raise checksums.DamagedDataError(checksums.message(place, f"another store in {place}")) from error
    if not (local / COPIED).exists():
        if not remote_files.exists(place / checksums.FILE):
            remote_files.upload_folder(local, place, checksums.FILE)
        (local / COPIED).touch()
    return store


def _fetch(place, local):
    """Copies a store from its address, if it counts there."""
    content = remote_files.read_bytes(place / checksums.FILE)
    if content is None:
        return
    try:
        names = [os.path.basename(name) for name in json.loads(content)["crc32"]]
    except (ValueError, KeyError, TypeError) as error:
        found = f"{place / checksums.FILE}, which is damaged"
        raise checksums.DamagedDataError(checksums.message(place, found)) from error
    with atomic_folder(local) as temporary:
        for name in names:
            try:
                remote_files.download(place / name, temporary / name)
            except ValueError as error:
                raise checksums.DamagedDataError(checksums.message(place, str(error))) from error
        (temporary / checksums.FILE).write_bytes(content)
        checksums.check(temporary / checksums.FILE, place)
        (temporary / COPIED).touch()
