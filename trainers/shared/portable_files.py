"""LiteRT and ONNX files of a run: the body of `trainers.export --format=litert` and `--format=onnx`."""

import os
from collections.abc import Sequence
from typing import Any

from tf_sparse_attention.export import export_litert, export_onnx
from tf_sparse_attention.models import LanguageModel
from trainers.shared import workdir

# What is written into the work folder, and by what.
WRITERS = {"litert": ("model.tflite", export_litert), "onnx": ("model_onnx", export_onnx)}


def export_portable(folder: str | os.PathLike, kind: str, signatures: Sequence[str] | None = None) -> dict[str, Any]:
    """Writes the LiteRT or ONNX files of a work folder's model into it, ids or features in and numbers out.

    They have rows of the length of training, `config.data.sequence_length`: tokens of a text, a source and a target,
    bytes of an image or of sound, frames of speech. One row is given at a time.

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
    length, model = workdir.load_config(folder).data.sequence_length, workdir.load_model(folder)
    if isinstance(model, LanguageModel) and not model.backbone.causal:
        raise ValueError(
            "`workdir` must not be the run of a model of hidden tokens, whose guesses no format has; train a "
            "classifier on it (`task=classify`, `config.model.start_from`) and export that. "
            f"Received: workdir={folder}."
        )
    lengths = {"sequence_length": length, "max_length": length, "source_length": length}
    path = write(model, workdir.open_workdir(folder) / name, signatures=signatures, **lengths)
    return {"path": str(path), "proof": f"random rows of {length} have the answers of the model"}
