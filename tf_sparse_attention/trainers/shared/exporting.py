"""Exports a trained model: the body of `tsa-export`."""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import workdir

SAVED_MODEL = "saved_model"
LINE = "def main():"
# As on a server: TensorFlow and the folder are available, the library cannot be imported.
RUN_ALONE = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tf_sparse_attention":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import tensorflow as tf

run = tf.saved_model.load(sys.argv[1]).signatures[sys.argv[2]]
specs = run.structured_input_signature[1]
result = run(**{name: tf.constant(value, specs[name].dtype) for name, value in json.loads(sys.argv[3]).items()})
plain = {name: value.numpy().tolist()[0] for name, value in result.items()}
print(json.dumps({name: x.decode("utf-8", "replace") if isinstance(x, bytes) else x for name, x in plain.items()}))
"""


def export(folder: str | os.PathLike, jit_compile: bool = True, weight_dtype: str | None = None) -> dict[str, Any]:
    """Writes the SavedModel of a work folder's model into it, and scores a line with it in a separate process.

    Args:
        folder: the work folder.
        jit_compile, weight_dtype: see `export_language_model`.

    Returns:
        Dictionary: "path" of the SavedModel, the "line" scored, its "bits_per_byte", "nats" and "num_bytes", and
        "proof", the same as text.

    Raises:
        ValueError: If there is no trained model, or the backend is not TensorFlow.
        RuntimeError: If the SavedModel does not work without the library.
    """
    config = workdir.load_config(folder)
    path = tsa.export.export_language_model(
        workdir.load_language_model(folder),
        workdir.open_workdir(folder) / SAVED_MODEL,
        workdir.load_tokenizer(folder),
        sequence_length=config.data.sequence_length,
        batch_size=config.data.batch_size,
        jit_compile=jit_compile,
        weight_dtype=weight_dtype,
    )
    found = score_alone(path, LINE)
    proof = f"{found['bits_per_byte']:.4f} bits per byte ({found['nats']:.2f} nats, {found['num_bytes']} bytes)"
    return {"path": str(path), "line": LINE, **found, "proof": f"{LINE!r} has {proof}"}


def score_alone(path: str | os.PathLike, line: str) -> dict[str, Any]:
    """Returns the outputs of the signature `score` for a line, see `run_alone`."""
    return run_alone(path, "score", {"text": [line]})


def run_alone(path: str | os.PathLike, signature: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a SavedModel for one row, in a process that has TensorFlow but not the library.

    Args:
        path: folder of the SavedModel.
        signature: its name.
        inputs: plain data by name.

    Raises:
        RuntimeError: If it fails, with its error output.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        result = subprocess.run(
            [sys.executable, "-I", "-c", RUN_ALONE, os.path.abspath(path), signature, json.dumps(inputs)],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode:
        raise RuntimeError(f"The SavedModel in {path} does not work by itself:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])
