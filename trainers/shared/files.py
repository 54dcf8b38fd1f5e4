"""Atomic writes of the files of a work folder."""

import json
import os
import pathlib
from typing import Any

from tf_sparse_attention.files import atomic_file


def remove_incomplete(folder: str | os.PathLike) -> None:
    """Removes the temporary files that killed processes left in a folder."""
    for path in pathlib.Path(folder).glob(".*.incomplete.*"):
        path.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Writes plain data as JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
