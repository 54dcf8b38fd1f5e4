"""Export of a trained model, for `tsa-export`."""

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
# {format: (file in the run directory, function of `tsa.export`)}
WRITERS = {"litert": ("model.tflite", "export_litert"), "onnx": ("model_onnx", "export_onnx")}
FORMATS = (SAVED_MODEL, *WRITERS)
HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")
# As on a server: TensorFlow and the SavedModel are available, and importing the library fails.
RUN_WITHOUT_LIBRARY = """
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
print(json.dumps(plain, default=lambda x: x.decode("utf-8", "replace")))  # bytes, also inside lists
"""


def export(
    folder: str | os.PathLike,
    kind: str = SAVED_MODEL,
    signatures: Sequence[str] | None = None,
    weight_dtype: str | None = None,
    jit_compile: bool = True,
) -> dict[str, Any]:
    """Export the model of a run to its run directory, in a format that does not need the library.

    A SavedModel is then tested in a process with TensorFlow and without the library.

    Args:
        folder: run directory.
        kind: one of `FORMATS`. Default: "saved_model".
        signatures: LiteRT and ONNX only: signatures to export, see `export_litert`. Default: None, all.
        weight_dtype, jit_compile: SavedModels only, see `tsa.export.export_language_model`. Default: None and True.

    Returns:
        Dictionary with "path", "test_result" (text about the test) and, for a SavedModel, the outputs of the test.

    Raises:
        ValueError: If the format does not support an argument or the model, or the run has no trained model.
        RuntimeError: If the SavedModel does not work without the library.
    """
    check_choice("kind", kind, FORMATS)
    if kind == SAVED_MODEL:
        if signatures is not None:
            raise ValueError(f"`--signatures` must be unset for SavedModels. Received: signatures={signatures}.")
        path = workdir.open_workdir(folder) / SAVED_MODEL
        test = registry.load_task(folder).export(workdir.load_model(folder), path, jit_compile, weight_dtype)
        outputs = run_without_library(path, test.signature, test.inputs)
        test_result = f"loaded in a process without the library, {test.describe(outputs)}"
        return {**outputs, "path": str(path), "test_result": test_result}
    if weight_dtype is not None:
        raise ValueError(f"`--weight_dtype` must be unset for {kind} files. Received: {weight_dtype}.")
    return _export_portable(folder, kind, signatures)


def run_without_library(path: str | os.PathLike, signature: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Compute the outputs of a SavedModel for one row, plain data, in a process without the library."""
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(
            [sys.executable, "-I", "-c", RUN_WITHOUT_LIBRARY, os.path.abspath(path), signature, json.dumps(inputs)],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode:
        raise RuntimeError(f"The SavedModel in {path} does not work without the library:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def _export_portable(folder, kind, signatures):
    """Export LiteRT or ONNX files in float32, for batches of one row of the training length."""
    name, write = WRITERS[kind]
    length, model = workdir.load_config(folder).data.sequence_length, in_float32(workdir.load_model(folder))
    if isinstance(model, LanguageModel) and not model.backbone.causal:
        raise ValueError(
            "`workdir` must not be the run of a masked language model, since no format supports it. Train a classifier "
            "that starts from it (`task=classify`, `config.model.start_from`), and export the classifier. "
            f"Received: workdir={folder}."
        )
    lengths = {"sequence_length": length, "max_length": length, "source_length": length}
    path = getattr(tsa.export, write)(model, workdir.open_workdir(folder) / name, signatures=signatures, **lengths)
    return {"path": str(path), "test_result": f"outputs for random rows of length {length} match the model"}


def in_float32(model: Any) -> Any:
    """Return a copy of a model that computes in float32. A model in float32 is returned unchanged."""
    config = model.get_config()
    float32_config = _with_float32(config)
    if float32_config == config:
        return model
    float32_model = type(model).from_config(float32_config)
    float32_model.set_weights(model.get_weights())
    return float32_model


def _with_float32(config):
    """Replace all dtype policies of half precision in a config by float32."""
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy":
            return {**config, "config": _with_float32(config["config"])}
        return {name: _with_float32(value) for name, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(map(_with_float32, config))
    name = config.name if isinstance(config, keras.DTypePolicy) else config
    return "float32" if isinstance(name, str) and name in HALF else config
