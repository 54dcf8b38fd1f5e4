"""LiteRT and ONNX files of a run: the body of `tsa-export --format=litert` and `--format=onnx`."""

import os
from collections.abc import Sequence
from typing import Any

import keras

import tf_sparse_attention as tsa
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.trainers.shared import workdir

# What is written into the work folder, and by which function of `tsa.export`, which needs TensorFlow.
WRITERS = {"litert": ("model.tflite", "export_litert"), "onnx": ("model_onnx", "export_onnx")}

HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")


def export_portable(folder: str | os.PathLike, kind: str, signatures: Sequence[str] | None = None) -> dict[str, Any]:
    """Writes the LiteRT or ONNX files of a work folder's model into it, ids or features in and numbers out.

    They have rows of the length of training, `config.data.sequence_length`: tokens of a text, a source and a target,
    bytes of an image or of sound, frames of speech. One row is given at a time. They compute in float32, whatever the
    precision of training was.

    Args:
        folder: the work folder of any task but that of hidden tokens.
        kind: one of `WRITERS`.
        signatures: which are written, see `export_litert`. Default: None, all that the model has.

    Returns:
        Dictionary: "path", and "proof", what the files were compared with.

    Raises:
        ImportError: If ONNX is wanted and its packages are not installed.
        ValueError: If there is no trained model, or it cannot be written in this format; a reason is given.
    """
    name, write = WRITERS[kind]
    length, model = workdir.load_config(folder).data.sequence_length, in_float32(workdir.load_model(folder))
    if isinstance(model, LanguageModel) and not model.backbone.causal:
        raise ValueError(
            "`workdir` must not be the run of a model of hidden tokens, whose guesses no format has; train a "
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
