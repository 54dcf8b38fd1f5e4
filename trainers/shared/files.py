"""Files of a work folder that are complete or not there at all, whenever the process is killed."""

import json
import pathlib

from tf_sparse_attention.files import replacing


def remove_incomplete(folder):
    """Removes what a killed process was writing with `replacing` in a folder."""
    for path in pathlib.Path(folder).glob(".*.incomplete.*"):
        path.unlink(missing_ok=True)


def write_json(path, content):
    """Writes plain data as JSON, all or nothing."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
