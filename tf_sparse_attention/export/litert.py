"""LiteRT files (.tflite) with token ids or features as inputs, for phones and other small devices."""

import contextlib
import os
import pathlib
import re
import tempfile
import warnings
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.export.portable_functions import (
    Sizes,
    check_outputs,
    portable_functions,
    unsupported_model_error,
)
from tf_sparse_attention.models import LanguageModel, SequenceToSequence, SpeechRecognizer
from tf_sparse_attention.models.encoder_tasks import EncoderTask
from tf_sparse_attention.ops.masks import MAX_AXES
from tf_sparse_attention.remote_files import as_path, is_remote, raise_remote_errors, write_bytes


def export_litert(
    model: LanguageModel | SequenceToSequence | SpeechRecognizer | EncoderTask,
    path: str | os.PathLike,
    batch_size: int = 1,
    sequence_length: int = 1024,
    max_length: int = 1024,
    signatures: Sequence[str] | None = None,
    source_length: int = 1024,
) -> pathlib.Path:
    """Write a LiteRT file with the signatures of the model. Inputs are token ids or features.

    The file has only builtin operations, so every LiteRT interpreter can run it. The signatures share the weights.
    All sizes are fixed. Before the file is written, its outputs are compared with the model's. A `LanguageModel` has
    the signatures

    - `score`: token_ids, int32 (B, sequence_length) -> nats, float32 (B, sequence_length): -log p of each token given
      the tokens before it in its row. The first token is scored as the start of a document. Pad shorter texts at the
      end with any id and ignore the nats there: the other outputs of a causal model do not depend on padding.
    - `decode`: token_ids, int32 (B, 1), index, int32 (B,), the number of earlier tokens in each row, and the tensors
      of the cache -> logits, float32 (B, V), for the next token, and the cache after the token. The output
      `new_NAME` is the new value of the input `NAME`. An empty cache is zeros. The first token of a document is id 0.

    A `SequenceToSequence` has `score` and `decode` for its targets, and `encode`. `score` also has the inputs of
    `encode`.

    - `encode`: source_ids, int32 (B, source_length), and num_source_tokens, int32 (B,), not counting padding at the
      end -> the inputs of `decode` that do not change between steps, with the same names.

    A `SpeechRecognizer` has `transcribe`, a classifier has `classify`, see docs/portable.md.

    Note: Keras's `model.export(format="litert")` writes one signature per file, so that each file has all weights.

    Args:
        model: `LanguageModel`, `SequenceToSequence` whose encoder reads token ids, `SpeechRecognizer`,
            `SequenceClassifier` or `TokenClassifier`, in float32, on the TensorFlow backend.
        path: file to write, with the suffix ".tflite", also at an address such as gs://bucket/model.tflite. An earlier
            file is replaced atomically.
        batch_size: number of rows B. Default: 1.
        sequence_length: tokens per row of `score` or `classify`, or frames of `transcribe`. Default: 1024.
        max_length: maximum number of tokens in a row of `decode`, including id 0 at the start. Default: 1024.
        signatures: names of the signatures to write. None (default): all signatures of the model.
        source_length: tokens per source of an encoder-decoder. Default: 1024.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, if the model is not supported, if LiteRT lacks an operation, or if the
            outputs of the file differ from the model's.

    Example:
        >>> export_litert(model, "model.tflite", sequence_length=512, max_length=512)
        >>> decode = tf.lite.Interpreter("model.tflite").get_signature_runner("decode")
        >>> inputs = {name: np.zeros(x["shape"], x["dtype"]) for name, x in decode.get_input_details().items()}
        >>> for index, token in enumerate([0, 74, 107]):  # id 0 and a prompt
        ...     inputs["token_ids"][:], inputs["index"][:] = token, index
        ...     outputs = decode(**inputs)
        ...     inputs |= {name: outputs["new_" + name] for name in inputs if "new_" + name in outputs}
        >>> outputs["logits"].argmax(-1)  # the most likely token after the prompt
    """
    file = as_path(path)
    with raise_remote_errors(file):
        is_folder = file.is_dir()
    if file.suffix != ".tflite" or is_folder:
        raise ValueError(f"`path` must be a file that ends with '.tflite'. Received: path={path}.")
    functions = portable_functions(model, signatures, Sizes(batch_size, sequence_length, max_length, source_length))
    _check_axes(model, functions)
    content = _convert(model, functions)
    check_outputs(model, functions, "LiteRT", _make_runner(content))
    if is_remote(file):
        write_bytes(file, content)
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as temporary:
        temporary.write_bytes(content)
    return file


def _convert(model, functions):
    module = tf.Module(name="served")
    module.weights = [variable.value for variable in model.variables]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, {name: function.graph for name, function in functions.items()})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(functions))
        try:
            with _suppress_stderr():
                return converter.convert()
        except Exception as error:  # the converter's error classes are not public
            reason = str(error)
    missing = sorted({name for names in re.findall(r"ops: ([\w, ]+)", reason) for name in names.split(", ")})
    reason = f"no operation for {', '.join(missing)}" if missing else reason
    raise unsupported_model_error(model, "LiteRT", reason)


def _check_axes(model, functions):
    """Raise a `ValueError` for operations that pass the converter and crash the interpreter."""
    for function in functions.values():
        for operation in function.graph.get_concrete_function().graph.get_operations():
            if operation.type in ("LogicalAnd", "LogicalOr"):
                first, second = (x.shape for x in operation.inputs)
                if first != second and operation.outputs[0].shape.rank > MAX_AXES:
                    reason = f"no {operation.type} that broadcasts more than {MAX_AXES} axes"
                    raise unsupported_model_error(model, "LiteRT", reason)


@contextlib.contextmanager
def _suppress_stderr():
    """Discard the converter's output on standard error, which is a page per operation."""
    with tempfile.TemporaryFile() as sink:
        before = os.dup(2)
        try:
            os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def _make_runner(content):
    with warnings.catch_warnings():
        # TensorFlow announces that its interpreter moves to another package.
        warnings.filterwarnings("ignore", message=r"[\s\S]*tf.lite.Interpreter is deprecated")
        interpreter = tf.lite.Interpreter(model_content=content)

    def run(name, inputs):
        return interpreter.get_signature_runner(name)(**inputs)

    return run
