"""Functions of LiteRT and ONNX files for each model class."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.export.encoder_tasks import check_encoder_inputs, encoder_inputs
from tf_sparse_attention.export.input_checks import check_kind, check_length
from tf_sparse_attention.generation.ctc import collapse
from tf_sparse_attention.models import (
    LanguageModel,
    SequenceClassifier,
    SequenceToSequence,
    SpeechRecognizer,
    TokenClassifier,
)
from tf_sparse_attention.models.metrics import nats_of

MAX_FILE_BYTES = 2**31  # both formats have signed 32-bit offsets
NUM_COMPARED_STEPS = 8
CACHED = ("encode", "decode")


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
