"""LiteRT files (.tflite) and ONNX files with token ids or features as inputs, for devices without TensorFlow."""

import contextlib
import dataclasses
import logging
import os
import pathlib
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.backends import import_optional
from tf_sparse_attention.export.encoder_tasks import check_encoder_inputs, encoder_inputs
from tf_sparse_attention.export.input_checks import check_kind, check_length, check_output_folder
from tf_sparse_attention.generation.ctc import collapse
from tf_sparse_attention.layers import AttentionLayer
from tf_sparse_attention.models import (
    LanguageModel,
    SequenceClassifier,
    SequenceToSequence,
    SpeechRecognizer,
    TokenClassifier,
)
from tf_sparse_attention.models.encoder_tasks import EncoderTask
from tf_sparse_attention.models.metrics import nats_of
from tf_sparse_attention.ops.masks import MAX_AXES
from tf_sparse_attention.remote_files import as_path, is_remote, output_folder, raise_remote_errors, write_bytes

OPSET = 18
TOLERANCE = 1e-3
# Fraction of outputs that may differ. Runtimes round differently, which can flip a near-tie between clusters.
MAX_MISMATCHED = 0.01
MAX_FILE_BYTES = 2**31  # both formats have signed 32-bit offsets
NUM_COMPARED_STEPS = 8
CACHED = ("encode", "decode")


def export_litert(
    model: LanguageModel | SequenceToSequence | SpeechRecognizer | EncoderTask,
    path: str | os.PathLike,
    batch_size: int = 1,
    sequence_length: int = 1024,
    max_length: int = 1024,
    signatures: Sequence[str] | None = None,
    source_length: int = 1024,
) -> pathlib.Path:
    """Write a LiteRT file with the signatures of the model, and return its path. Inputs are token ids or features.

    The file has only builtin operations, so every LiteRT interpreter can run it. The signatures share the weights.
    All sizes are fixed. Before the file is written, its outputs are compared with the model's. A `LanguageModel` has
    the signatures

    - `score`: token_ids, int32 (B, sequence_length) -> nats, float32 (B, sequence_length): -log p of each token given
      the tokens before it in its row. The first token is scored as the start of a document. Pad shorter texts at the
      end with any id and ignore the nats there: the other outputs of a causal model do not depend on padding.
    - `decode`: token_ids, int32 (B, 1), index, int32 (B,), the number of earlier tokens in each row, and the tensors
      of the cache -> logits, float32 (B, V), for the next token, and the cache after the token. The output
      `new_NAME` is the new value of the input `NAME`. An empty cache is zeros. The first token of a document is id 0.

    A `SequenceToSequence` has `score` and `decode` for its targets; `score` also has the inputs of `encode`:

    - `encode`: source_ids, int32 (B, source_length), and num_source_tokens, int32 (B,), not counting padding at the
      end -> the inputs of `decode` that do not change between steps, with the same names.

    A `SpeechRecognizer` has `transcribe`, a classifier has `classify`. docs/portable.md describes them, and has an
    example of decoding.

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

    Raises:
        ValueError: On another backend, if the model is not supported, if LiteRT lacks an operation, or if the
            outputs of the file differ from the model's.

    Example:
        >>> export_litert(model, "model.tflite", sequence_length=512, max_length=512)
        >>> score = tf.lite.Interpreter("model.tflite").get_signature_runner("score")
        >>> nats = score(token_ids=np.ones((1, 512), "int32"))["nats"]
    """
    file = as_path(path)
    with raise_remote_errors(file):
        is_folder = file.is_dir()
    if file.suffix != ".tflite" or is_folder:
        raise ValueError(f"`path` must be a file that ends with '.tflite'. Received: path={path}.")
    functions = portable_functions(model, signatures, Sizes(batch_size, sequence_length, max_length, source_length))
    graphs = [function.graph.get_concrete_function().graph for function in functions.values()]
    with _unsupported_errors(model, "LiteRT"):
        _check_axes(graphs)
    content = _convert_to_litert(model, functions)
    _check_outputs(model, functions, "LiteRT", _litert_runner(content))
    if is_remote(file):
        write_bytes(file, content)
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as temporary:
        temporary.write_bytes(content)
    return file


def export_onnx(
    model: LanguageModel | SequenceToSequence | SpeechRecognizer | EncoderTask,
    path: str | os.PathLike,
    batch_size: int = 1,
    sequence_length: int = 1024,
    max_length: int = 1024,
    signatures: Sequence[str] | None = None,
    source_length: int = 1024,
) -> pathlib.Path:
    """Write a folder with one ONNX file per signature of the model, such as `score.onnx`, and return its path.

    Signatures, inputs, outputs and sizes are the same as for `export_litert`. Each file has all weights. Before the
    folder is written, the outputs are compared with the model's. ONNX needs `pip install 'tf-sparse-attention[onnx]'`.

    Args:
        model: as for `export_litert`.
        path: folder to write. The folder must be new, empty, or an earlier export, which is replaced
            atomically. It may be at an address such as gs://bucket/model.
        batch_size, sequence_length, max_length, signatures, source_length: see `export_litert`.

    Raises:
        ImportError: If tf2onnx or onnxruntime is not installed.
        ValueError: On another backend, if the model is not supported, if ONNX lacks an operation, if `path` is a
            file or has other files, or if the outputs of the files differ from the model's.

    Example:
        >>> export_onnx(model, "model", sequence_length=512, max_length=512)
        >>> session = onnxruntime.InferenceSession("model/score.onnx")
        >>> nats = session.run(["nats"], {"token_ids": token_ids})[0]
    """
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        import_optional(name, "onnx", "Writing ONNX files")
    folder = check_output_folder(path, {f"{name}.onnx" for kind in KINDS.values() for name in kind.signatures})
    functions = portable_functions(model, signatures, Sizes(batch_size, sequence_length, max_length, source_length))
    with _unsupported_errors(model, "ONNX"):
        contents = {name: _convert_to_onnx(function) for name, function in functions.items()}
        run = _onnx_runner(contents)
    _check_outputs(model, functions, "ONNX", run)
    with output_folder(folder) as temporary:
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / f"{name}.onnx").write_bytes(content)
    return folder


@contextlib.contextmanager
def _unsupported_errors(model, runtime):
    """Convert errors of a converter or runtime, whose classes are not public, to a `ValueError` with a short reason."""
    try:
        yield
    except Exception as error:
        missing = {name for names in re.findall(r"ops: ([\w, ]+)", str(error)) for name in names.split(", ")}
        reason = f"no operation for {', '.join(sorted(missing))}" if missing else str(error).strip().partition("\n")[0]
        layers = [layer for layer in model._flatten_layers() if isinstance(layer, AttentionLayer)]
        names = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise ValueError(
            f"`model` must have only operations of {runtime}, see docs/portable.md. A SavedModel has all operations: "
            f"`{find_kind(model).saved_model}`. Received: layers {names}; the reason: {reason[:200].rstrip('.')}."
        ) from None


def _convert_to_litert(model, functions):
    module = tf.Module(name="served")
    module.weights = [variable.value for variable in model.variables]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, {name: function.graph for name, function in functions.items()})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(functions))
        with _unsupported_errors(model, "LiteRT"), _suppress_stderr():
            return converter.convert()


def _check_axes(graphs):
    """Raise an error for operations that pass the converter and crash the interpreter."""
    for graph in graphs:
        for operation in graph.get_operations():
            if operation.type in ("LogicalAnd", "LogicalOr"):
                first, second = (x.shape for x in operation.inputs)
                if first != second and operation.outputs[0].shape.rank > MAX_AXES:
                    raise NotImplementedError(f"no {operation.type} that broadcasts more than {MAX_AXES} axes")


@contextlib.contextmanager
def _suppress_stderr():
    """Discard the converter's output on standard error, which is a page per operation."""
    before = os.dup(2)
    with open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _litert_runner(content):
    with warnings.catch_warnings():
        # TensorFlow announces that its interpreter moves to another package.
        warnings.filterwarnings("ignore", message=r"[\s\S]*tf.lite.Interpreter is deprecated")
        interpreter = tf.lite.Interpreter(model_content=content)
    return lambda name, inputs: interpreter.get_signature_runner(name)(**inputs)


def _convert_to_onnx(function):
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
    finally:
        log.setLevel(level)
    missing = sorted({node.op_type for node in converted.graph.node if not onnx.defs.has(node.op_type)})
    if missing:
        raise NotImplementedError(f"no operation for {', '.join(missing)}")
    return converted.SerializeToString()


def _convert_erfc(graph, node, name, arguments):
    """Replace erfc(x) in GELU by 1 - erf(x), because tf2onnx cannot convert erfc."""
    graph.remove_node(node.name)
    one = graph.make_const(f"{node.name}/one", np.array(1, "float32"))
    erf = graph.make_node("Erf", node.input)
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output)


def _onnx_runner(contents):
    import onnxruntime

    sessions = {name: onnxruntime.InferenceSession(content) for name, content in contents.items()}

    def run(name, inputs):
        names = [output.name for output in sessions[name].get_outputs()]
        return dict(zip(names, sessions[name].run(names, inputs), strict=True))

    return run


def _check_outputs(model, functions, runtime, run):
    """Raise a `ValueError` if outputs of a runtime, `run(name, inputs)`, and of Keras differ for random inputs."""
    random = np.random.default_rng(0)
    kept: tuple[dict, dict] = {}, {}  # outputs of Keras and of the runtime, each the inputs of its next step
    for name, function in functions.items():
        zeros = {spec.name: np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in function.inputs}
        for step in range(function.num_steps):
            drawn = function.draw(random, step)
            inputs, runtime_inputs = ({key: {**zeros, **each, **drawn}[key] for key in zeros} for each in kept)
            expected = {key: x.numpy() for key, x in function.graph(*map(tf.constant, inputs.values())).items()}
            with _unsupported_errors(model, runtime):
                found = run(name, runtime_inputs)
            for key, right in expected.items():
                if (share := _share_of_differences(right, found[key])) > MAX_MISMATCHED:
                    raise ValueError(
                        f"The outputs of the {runtime} file differ from the model's, so the file is not written. A "
                        f"SavedModel has the same outputs: `{find_kind(model).saved_model}`. "
                        f"Received: {share:.0%} of `{key}` of `{name}` differ."
                    )
            for each, outputs in zip(kept, (expected, found), strict=True):
                each.update({key.removeprefix("new_"): x for key, x in outputs.items()})


def _share_of_differences(expected, found):
    expected, found = expected.astype("float64"), np.asarray(found).astype("float64")
    # Not `>`, so that NaN differs from everything.
    return 1 - (np.abs(found - expected) <= TOLERANCE * np.maximum(1, np.abs(expected))).mean()


class Sizes(NamedTuple):
    """The sizes of the inputs of a file: arguments of `export_litert` and `export_onnx`."""

    batch_size: int
    sequence_length: int
    max_length: int
    source_length: int


@dataclasses.dataclass
class PortableFunction:
    """One function of a file; `graph` is its `tf.function`.

    Args:
        function: takes a tensor per input, by position, and returns a dictionary of tensors.
        inputs: list of `tf.TensorSpec` with the names of the file's inputs.
        ranges: (minimum, maximum) of random integer inputs by name, for the comparison of outputs.
        num_steps: number of compared calls. The outputs of each call are inputs of the next call, by their name without
            the prefix "new_". The input "index" is the number of the call, from 0. Default: 1.
    """

    function: Callable[..., dict[str, Any]]
    inputs: list[tf.TensorSpec]
    ranges: Mapping[str, tuple[int, int]]
    num_steps: int = 1

    def __post_init__(self) -> None:
        self.graph = tf.function(self.function, input_signature=self.inputs, autograph=False)

    def draw(self, random: np.random.Generator, step: int) -> dict[str, np.ndarray]:
        """Return random inputs of a call by name, without inputs that are outputs of earlier calls."""
        shapes = {spec.name: spec.shape for spec in self.inputs}
        drawn = {
            name: random.integers(minimum, maximum + 1, size=shapes[name], dtype="int32")
            for name, (minimum, maximum) in self.ranges.items()
        }
        if "features" in shapes:
            drawn["features"] = random.normal(size=shapes["features"]).astype("float32")
        if "index" in shapes:
            drawn["index"] = np.full(shapes["index"], step, "int32")
        return drawn


def _source(model, sizes):
    """Return the inputs of a source, their ranges, and the function from the inputs to encoder outputs."""
    length, feature_size = sizes.source_length, model.encoder.embedding_dim
    check_length("source_length", length, model.encoder.max_length)
    if model.encoder.vocabulary_size is None and feature_size != model.backbone.embedding_dim:
        raise ValueError(
            "`model` must have an encoder that reads token ids, or ids embedded by the decoder. "
            f"Received: an encoder of features of size {feature_size}."
        )

    def encode(source_ids, num_source_tokens):
        mask = tf.range(length) < num_source_tokens[:, None]
        return model.encode({"encoder_token_ids": source_ids, "encoder_padding_mask": mask}, training=False)

    inputs = [_integers("source_ids", sizes.batch_size, length), _integers("num_source_tokens", sizes.batch_size)]
    ranges = {"source_ids": (0, model.source_vocabulary_size - 1), "num_source_tokens": (1, length)}
    return inputs, ranges, encode


def _token_functions(model, sizes, names):
    """Return the functions of a language model or encoder-decoder."""
    is_encoder_decoder = isinstance(model, SequenceToSequence)
    decoder = model.decoder if is_encoder_decoder else model
    source = _source(model, sizes) if is_encoder_decoder else ([], {}, dict)
    source_specs, source_ranges, encode_source = source
    functions = _cached_functions(decoder, sizes, *source) if set(CACHED) & set(names) else {}
    if "score" in names:
        check_length("sequence_length", sizes.sequence_length, decoder.backbone.max_length)

        def score(*inputs):
            *source_inputs, token_ids = inputs
            # As in training: each token is predicted from the tokens before it, with id 0 at the start.
            previous = tf.pad(token_ids[:, :-1], [[0, 0], [1, 0]])
            logits = decoder({"token_ids": previous, **encode_source(*source_inputs)}, training=False)
            return {"nats": nats_of(token_ids, logits)}

        inputs = [*source_specs, _integers("token_ids", sizes.batch_size, sizes.sequence_length)]
        ranges = {**source_ranges, "token_ids": (0, decoder.vocabulary_size - 1)}
        functions["score"] = PortableFunction(score, inputs, ranges)
    return functions


def _cached_functions(decoder, sizes, source_specs, source_ranges, encode_source):
    """Return `encode` and `decode`. The name of a tensor of the nested cache is its path of keys, joined by "_"."""
    check_length("max_length", sizes.max_length, decoder.backbone.max_length)

    def make_cache(*source_inputs):
        return decoder.init_cache(sizes.batch_size, sizes.max_length, **encode_source(*source_inputs))

    structure = make_cache(*(tf.ones(spec.shape, spec.dtype) for spec in source_specs))
    paths, starts = zip(*keras.tree.flatten_with_path(structure), strict=True)
    names = [re.sub(r"\W", "_", "_".join(path)) for path in paths]
    if len({"token_ids", "index", *names}) != len(names) + 2:
        raise ValueError(f"`model` must have layers whose names differ when joined by '_'. Received: {names}.")
    blocks = [block for block in decoder.backbone.blocks if block.cross_attention is not None]
    cross_layers = {(block.name, block.cross_attention.name) for block in blocks}
    source_names = {name for name, path in zip(names, paths, strict=True) if path[:2] in cross_layers}
    for name, start in zip(names, starts, strict=True):
        if name not in source_names and np.any(start):
            raise ValueError(f"`model` must have an initial cache of zeros. Received: other values in {name}.")

    def encode(*source_inputs):
        tensors = zip(names, keras.tree.flatten(make_cache(*source_inputs)), strict=True)
        return {name: x for name, x in tensors if name in source_names}

    def decode(token_ids, index, *tensors):
        cache = keras.tree.pack_sequence_as(structure, list(tensors))
        logits, cache = decoder.extend(token_ids, cache, index=index)
        new = zip(names, keras.tree.flatten(cache), strict=True)
        return {"logits": logits[:, 0], **{f"new_{name}": x for name, x in new if name not in source_names}}

    tensors = [tf.TensorSpec(start.shape, start.dtype, name) for name, start in zip(names, starts, strict=True)]
    inputs = [_integers("token_ids", sizes.batch_size, 1), _integers("index", sizes.batch_size), *tensors]
    ranges = {"token_ids": (0, decoder.vocabulary_size - 1)}
    return {
        "encode": PortableFunction(encode, source_specs, source_ranges),
        "decode": PortableFunction(decode, inputs, ranges, NUM_COMPARED_STEPS),
    }


def _speech_functions(model, sizes, names):
    num_positions, length = model.encoder.max_length, sizes.sequence_length
    check_length("sequence_length", length, num_positions and num_positions * model.subsampling)

    def transcribe(features, num_frames):
        mask = tf.range(length) < num_frames[:, None]
        log_probs = model({"features": features, "padding_mask": mask}, training=False)
        # As `ctc_greedy`, but with `tf.argmax`: the runtimes lack an operation of Keras's `argmax` for signed zeros.
        ids = tf.argmax(log_probs, axis=-1, output_type=tf.int32)
        return {"log_probs": log_probs, "label_ids": collapse(ids)}

    frames = tf.TensorSpec((sizes.batch_size, length, model.num_features), tf.float32, "features")
    inputs = [frames, _integers("num_frames", sizes.batch_size)]
    return {"transcribe": PortableFunction(transcribe, inputs, {"num_frames": (1, length)})}


def _classifier_functions(model, sizes, names):
    check_encoder_inputs(model)
    length = sizes.sequence_length
    check_length("sequence_length", length, getattr(model.encoder, "max_length", None))

    def classify(token_ids, num_tokens):
        logits = model(encoder_inputs(model, token_ids, num_tokens), training=False)
        return {"probabilities": tf.nn.softmax(logits)}

    inputs = [_integers("token_ids", sizes.batch_size, length), _integers("num_tokens", sizes.batch_size)]
    ranges = {"token_ids": (0, (model.vocabulary_size or 2) - 1), "num_tokens": (1, length)}
    return {"classify": PortableFunction(classify, inputs, ranges)}


def _integers(name, *shape):
    return tf.TensorSpec(shape, tf.int32, name)


class Kind(NamedTuple):
    """Export of a model class: names of signatures, a factory of functions, and the name of the SavedModel export."""

    signatures: tuple[str, ...]
    make_functions: Callable[..., dict[str, PortableFunction]]
    saved_model: str


KINDS: dict[type, Kind] = {
    LanguageModel: Kind(("score", "decode"), _token_functions, "export_language_model"),
    SequenceToSequence: Kind(("encode", "score", "decode"), _token_functions, "export_sequence_to_sequence"),
    SpeechRecognizer: Kind(("transcribe",), _speech_functions, "export_speech"),
    SequenceClassifier: Kind(("classify",), _classifier_functions, "export_classifier"),
    TokenClassifier: Kind(("classify",), _classifier_functions, "export_classifier"),
}


def portable_functions(
    model: keras.Model, signatures: Sequence[str] | None, sizes: Sizes
) -> dict[str, PortableFunction]:
    """Return functions by signature (None: all). Raise a `ValueError` if the model is not supported."""
    check_kind(model, tuple(KINDS), "LiteRT and ONNX files")
    kind = find_kind(model)
    names = kind.signatures if signatures is None else signatures
    if not names or isinstance(names, str) or not set(names) <= set(kind.signatures):
        raise ValueError(f"`signatures` must be some of {kind.signatures}. Received: signatures={signatures!r}.")
    _check_model(model, kind, set(names))
    checks.check_count("batch_size", sizes.batch_size)
    functions = kind.make_functions(model, sizes, names)
    return {name: functions[name] for name in kind.signatures if name in names}


def find_kind(model: keras.Model) -> Kind:
    """Return the `Kind` of a supported model."""
    return next(kind for each, kind in KINDS.items() if isinstance(model, each))


def _check_model(model, kind, names):
    if isinstance(model, LanguageModel) and not model.backbone.causal:
        raise ValueError("`model` must be causal. Received: a backbone with causal=False.")
    parts = [getattr(model, name) for name in ("encoder", "decoder", "backbone") if hasattr(model, name)]
    dtypes = sorted({part.compute_dtype for part in (model, *parts)} - {"float32"})
    if dtypes:
        raise ValueError(
            "`model` must compute in float32. Make a model with dtype='float32' and load the weights "
            f"(`load_weights`). Received: compute dtype {dtypes[0]}."
        )
    decoder = model.decoder if isinstance(model, SequenceToSequence) else model
    reason = decoder.cache_unsupported_reason if names & set(CACHED) else None
    if reason is not None:
        raise ValueError(
            f"`model` must decode with a cache: {reason}. Use `signatures=('score',)` to leave decoding out."
        )
    size = 4 * model.count_params()
    if size >= MAX_FILE_BYTES:
        raise ValueError(
            f"`model` must have weights of less than {MAX_FILE_BYTES:,} bytes, the limit of these files. A SavedModel "
            f"has no limit: `{kind.saved_model}`. Received: weights of {size:,} bytes."
        )
