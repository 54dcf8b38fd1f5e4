"""Exports a trained model: the body of `trainers.export`."""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from tf_sparse_attention.export import export_saved_model
from trainers.shared import workdir

SAVED_MODEL = "saved_model"
LINE = "def main():"
# As on a server: TensorFlow and the folder are available, the library cannot be imported.
SCORE_ALONE = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tf_sparse_attention":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import tensorflow as tf

result = tf.saved_model.load(sys.argv[1]).signatures["score"](text=tf.constant([sys.argv[2]]))
print(json.dumps({name: float(value[0]) for name, value in result.items()}))
"""


def export(folder: str | os.PathLike, jit_compile: bool = True, weight_dtype: str | None = None) -> dict[str, Any]:
    """Writes the SavedModel of a work folder's model into it, and scores a line with it in a separate process.

    Args:
        folder: the work folder.
        jit_compile, weight_dtype: see `export_saved_model`.

    Returns:
        Dictionary: "path" of the SavedModel, the "line" scored, and its "bits_per_byte", "nats" and "num_bytes".

    Raises:
        ValueError: If there is no trained model, or the backend is not TensorFlow.
        RuntimeError: If the SavedModel does not work without the library.
    """
    config = workdir.load_config(folder)
    path = export_saved_model(
        workdir.load_language_model(folder),
        workdir.open_workdir(folder) / SAVED_MODEL,
        workdir.load_tokenizer(folder),
        sequence_length=config.data.sequence_length,
        batch_size=config.data.batch_size,
        jit_compile=jit_compile,
        weight_dtype=weight_dtype,
    )
    return {"path": str(path), "line": LINE, **score_alone(path, LINE)}


def score_alone(path: str | os.PathLike, line: str) -> dict[str, Any]:
    """Returns the outputs of the signature `score` for a line, in a process that has TensorFlow but not the library.

    Raises:
        RuntimeError: If it fails, with its error output.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        result = subprocess.run(
            [sys.executable, "-I", "-c", SCORE_ALONE, os.path.abspath(path), line],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode:
        raise RuntimeError(f"The SavedModel in {path} does not work by itself:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])
