"""Exports a trained model: what `tsa-export` does."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import keras

import tf_sparse_attention as tsa
from tf_sparse_attention.checks import check_choice
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.trainers.shared import workdir
from tf_sparse_attention.trainers.tasks import registry

SAVED_MODEL = "saved_model"
# File in the run folder, and function of `tsa.export`, which needs TensorFlow.
WRITERS = {"litert": ("model.tflite", "export_litert"), "onnx": ("model_onnx", "export_onnx")}
FORMATS = (SAVED_MODEL, *WRITERS)
HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")
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


def export(
    folder: str | os.PathLike,
    kind: str = SAVED_MODEL,
    signatures: Sequence[str] | None = None,
    weight_dtype: str | None = None,
    jit_compile: bool = True,
) -> dict[str, Any]:
    """Writes the model of a run folder into it, in a format for use without the library.

    A SavedModel is then tried in a process that has TensorFlow but not the library.

    Args:
        folder: the run folder.
        kind: one of `FORMATS`. Default: "saved_model".
        signatures: of LiteRT and ONNX, which are written, see `export_litert`. Default: None, all.
        weight_dtype, jit_compile: of SavedModels, see `tsa.export.export_language_model`. Default: None and True.

    Returns:
        Dictionary: "path", "proof", what was compared or tried, as text, and of a SavedModel the outputs of that trial.

    Raises:
        ValueError: If an argument is of another format, there is no trained model, it cannot be written in this format,
            or the backend is not TensorFlow.
        RuntimeError: If the SavedModel does not work without the library.

    Example:

    >>> export("runs/demo")["path"]
    'runs/demo/saved_model'
    """
    check_choice("kind", kind, FORMATS)
    if kind == SAVED_MODEL:
        if signatures is not None:
            raise ValueError(f"`--signatures` must be unset for SavedModels. Received: signatures={signatures}.")
        path = workdir.open_workdir(folder) / SAVED_MODEL
        trial = registry.load_task(folder).export(workdir.load_model(folder), path, jit_compile, weight_dtype)
        found = run_alone(path, trial.signature, trial.inputs)
        proof = f"loaded in a process without the library, {trial.describe(found)}"
        return {**found, "path": str(path), "proof": proof}
    if weight_dtype is not None:
        raise ValueError(f"`--weight_dtype` must be unset for {kind} files. Received: {weight_dtype}.")
    return _export_portable(folder, kind, signatures)


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


def _export_portable(folder, kind, signatures):
    """Writes the LiteRT or ONNX files of a run: ids or features in and numbers out, in float32, one row at a time.

    Rows have the length of training, `config.data.sequence_length`: tokens of a text, a source and a target, bytes of
    an image or of sound, frames of speech.
    """
    name, write = WRITERS[kind]
    length, model = workdir.load_config(folder).data.sequence_length, in_float32(workdir.load_model(folder))
    if isinstance(model, LanguageModel) and not model.backbone.causal:
        raise ValueError(
            "`workdir` must not be the run of a model of masked tokens, whose guesses no format has; train a "
            "classifier on it (`task=classify`, `config.model.start_from`) and export that. "
            f"Received: workdir={folder}."
        )
    lengths = {"sequence_length": length, "max_length": length, "source_length": length}
    path = getattr(tsa.export, write)(model, workdir.open_workdir(folder) / name, signatures=signatures, **lengths)
    return {"path": str(path), "proof": f"random rows of {length} have the answers of the model"}


def in_float32(model: Any) -> Any:
    """Returns a model that computes in float32, as the files do, with the weights of another: itself if it does."""
    config = model.get_config()
    changed = _with_float32(config)
    if changed == config:
        return model
    plain = type(model).from_config(changed)
    plain.set_weights(model.get_weights())
    return plain


def _with_float32(config):
    """Returns a config in which every dtype policy of half precision is float32."""
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy":
            return {**config, "config": _with_float32(config["config"])}
        return {name: _with_float32(value) for name, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(map(_with_float32, config))
    name = config.name if isinstance(config, keras.DTypePolicy) else config
    return "float32" if isinstance(name, str) and name in HALF else config
