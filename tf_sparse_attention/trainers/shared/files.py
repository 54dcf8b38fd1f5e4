"""Atomic writes of the files of a work folder."""

import json
import os
from typing import Any

from tf_sparse_attention.atomic_files import atomic_file


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Writes plain data as JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
