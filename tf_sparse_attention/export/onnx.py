"""ONNX files with token ids or features as inputs, for ONNX Runtime and other runtimes."""

import importlib
import logging
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.export.input_checks import check_output_folder
from tf_sparse_attention.export.portable_functions import (
    SIGNATURES,
    Sizes,
    check_outputs,
    portable_functions,
    unsupported_model_error,
)
from tf_sparse_attention.models import LanguageModel, SequenceToSequence, SpeechRecognizer
from tf_sparse_attention.models.encoder_tasks import EncoderTask
from tf_sparse_attention.remote_files import output_folder

OPSET = 18


def export_onnx(
    model: LanguageModel | SequenceToSequence | SpeechRecognizer | EncoderTask,
    path: str | os.PathLike,
    batch_size: int = 1,
    sequence_length: int = 1024,
    max_length: int = 1024,
    signatures: Sequence[str] | None = None,
    source_length: int = 1024,
) -> pathlib.Path:
    """Write a folder with one ONNX file per signature of the model, such as `score.onnx`.

    Signatures, inputs, outputs and sizes are the same as for `export_litert`. Each file has all weights. Before the
    folder is written, the outputs are compared with the model's. ONNX needs `pip install 'tf-sparse-attention[onnx]'`.

    Note: Keras's `model.export(format="onnx")` cannot convert the GELU of speech recognizers, and cannot trace the
    decoder of an encoder-decoder without its source.

    Args:
        model: as for `export_litert`.
        path: folder to write. The folder must be new, empty, or an earlier export, which is replaced
            atomically. It may be at an address such as gs://bucket/model.
        batch_size, sequence_length, max_length, signatures, source_length: see `export_litert`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ImportError: If tf2onnx or onnxruntime is not installed.
        ValueError: On another backend, if the model is not supported, if ONNX lacks an operation, if `path` is a
            file or has other files, or if the outputs of the files differ from the model's.

    Example:
        >>> export_onnx(model, "model", sequence_length=512, max_length=512)
        >>> session = onnxruntime.InferenceSession("model/score.onnx")
        >>> nats = session.run(["nats"], {"token_ids": token_ids})[0]
    """
    _check_packages()
    folder = check_output_folder(path, {f"{name}.onnx" for name in SIGNATURES})
    functions = portable_functions(model, signatures, Sizes(batch_size, sequence_length, max_length, source_length))
    contents = {name: _convert(model, function) for name, function in functions.items()}
    check_outputs(model, functions, "ONNX", _make_runner(model, contents))
    with output_folder(folder) as temporary:
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / f"{name}.onnx").write_bytes(content)
    return folder


def _check_packages():
    try:
        for name in ("onnx", "onnxruntime", "tf2onnx"):
            importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "ONNX files need tf2onnx and onnxruntime. Install them with `pip install 'tf-sparse-attention[onnx]'`. "
            f"The import failed with: {error}"
        ) from error


def _convert(model, function):
    import onnx
    import tf2onnx

    log = logging.getLogger("tf2onnx")
    level = log.level
    # tf2onnx logs an error for each operation that it cannot convert, and continues.
    log.setLevel(logging.CRITICAL)
    try:
        converted, _ = tf2onnx.convert.from_function(
            function.graph, function.inputs, opset=OPSET, custom_op_handlers={"Erfc": (_convert_erfc, [])}
        )
    except Exception as error:  # tf2onnx documents no error classes
        raise unsupported_model_error(model, "ONNX", error) from None
    finally:
        log.setLevel(level)
    missing = sorted({node.op_type for node in converted.graph.node if not onnx.defs.has(node.op_type)})
    if missing:
        raise unsupported_model_error(model, "ONNX", f"no operation for {', '.join(missing)}")
    return converted.SerializeToString()


def _convert_erfc(graph, node, name, arguments):
    """Replace erfc(x) in GELU by 1 - erf(x), because tf2onnx cannot convert erfc."""
    graph.remove_node(node.name)
    one = graph.make_const(f"{node.name}/one", np.array(1, "float32"))
    erf = graph.make_node("Erf", node.input)
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output)


def _make_runner(model, contents):
    import onnxruntime

    try:
        sessions = {name: onnxruntime.InferenceSession(content) for name, content in contents.items()}
    except Exception as error:  # tf2onnx documents no error classes
        raise unsupported_model_error(model, "ONNX", error) from None

    def run(name, inputs):
        names = [output.name for output in sessions[name].get_outputs()]
        return dict(zip(names, sessions[name].run(names, inputs), strict=True))

    return run
