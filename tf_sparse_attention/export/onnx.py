"""ONNX files, which score and continue token ids in ONNX Runtime and what else reads them."""

import logging
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.export.portable_functions import Sizes, check_outputs, portable_functions
from tf_sparse_attention.export.portable_kinds import SIGNATURES, unsupported_model_error
from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.remote_files import as_path, output_folder, raise_remote_errors

OPSET = 18


def export_onnx(
    model: LanguageModel | SequenceToSequence,
    path: str | os.PathLike,
    batch_size: int = 1,
    sequence_length: int = 1024,
    max_length: int = 1024,
    signatures: Sequence[str] | None = None,
    source_length: int = 1024,
) -> pathlib.Path:
    """Writes a folder with a file for each signature of the model, such as `score.onnx`: token ids in, numbers out.

    Signatures, inputs, outputs and sizes are those of `export_litert`; each file has the weights. Before they are
    written, their outputs are compared with the model's. It needs `pip install 'tf-sparse-attention[onnx]'`.

    Args:
        model: as for `export_litert`.
        path: folder to write. It must not exist, or be empty, or hold an earlier export, which is replaced
            atomically. It may be at an address such as gs://bucket/model.
        batch_size: number of rows B. Default: 1.
        sequence_length: tokens of a row of `score`. Default: 1024.
        max_length: maximal number of tokens in a row of `decode`, including id 0 at the start. Default: 1024.
        signatures: which are written. None (default): all that the model has.
        source_length: tokens of a row of the source of an encoder-decoder. Default: 1024.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ImportError: If tf2onnx or onnxruntime is not installed.
        ValueError: On another backend, for a model that is not suitable or that ONNX has no operations for, for a path
            that must not be written, or if the outputs of the files differ from the model's.

    Example:
        >>> export_onnx(model, "model", sequence_length=512, max_length=512)
        >>> session = onnxruntime.InferenceSession("model/score.onnx")
        >>> nats = session.run(["nats"], {"token_ids": token_ids})[0]
    """
    packages = _packages()
    folder = _checked_path(path)
    sizes = Sizes(batch_size, sequence_length, max_length, source_length)
    functions = portable_functions(model, signatures, sizes)
    contents = {name: _convert(packages, model, function) for name, function in functions.items()}
    check_outputs(model, functions, "ONNX", _make_runner(packages, model, contents))
    with output_folder(folder) as temporary:
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / f"{name}.onnx").write_bytes(content)
    return folder


def _packages():
    try:
        import onnx
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            "ONNX files need tf2onnx and onnxruntime. Install them with `pip install 'tf-sparse-attention[onnx]'`. "
            f"The import said: {error}"
        ) from error
    return onnx, onnxruntime, tf2onnx


def _checked_path(path):
    path, ours = as_path(path), {f"{name}.onnx" for name in SIGNATURES}
    with raise_remote_errors(path):
        is_free = not path.exists() or (path.is_dir() and {file.name for file in path.iterdir()} <= ours)
    if not is_free:
        raise ValueError(f"`path` must be new, or a folder with nothing but an earlier export. Received: path={path}.")
    return path


def _convert(packages, model, function):
    onnx, _, tf2onnx = packages
    log = logging.getLogger("tf2onnx")
    level = log.level
    # It logs each operation that it does not know, and goes on.
    log.setLevel(logging.CRITICAL)
    try:
        handlers: dict = {"Erfc": (_convert_erfc, [])}
        converted, _ = tf2onnx.convert.from_function(
            function.run, function.inputs, opset=OPSET, custom_op_handlers=handlers
        )
    except Exception as error:  # of any class
        raise unsupported_model_error(model, "ONNX", error) from None
    finally:
        log.setLevel(level)
    missing = sorted({node.op_type for node in converted.graph.node if not onnx.defs.has(node.op_type)})
    if missing:
        raise unsupported_model_error(model, "ONNX", f"no operation for {', '.join(missing)}")
    return converted.SerializeToString()


def _convert_erfc(graph, node, name, arguments):
    """Replaces erfc(x), of GELU, which tf2onnx does not know, by 1 - erf(x)."""
    graph.remove_node(node.name)
    one = graph.make_const(f"{node.name}/one", np.array(1, "float32"))
    erf = graph.make_node("Erf", node.input)
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output)


def _make_runner(packages, model, contents):
    _, onnxruntime, _ = packages
    try:
        sessions = {name: onnxruntime.InferenceSession(content) for name, content in contents.items()}
    except Exception as error:  # of any class
        raise unsupported_model_error(model, "ONNX", error) from None

    def run(name, inputs):
        names = [output.name for output in sessions[name].get_outputs()]
        return dict(zip(names, sessions[name].run(names, inputs), strict=True))

    return run
