"""The functions of token ids in LiteRT and ONNX files, and the comparison of a runtime's outputs with Keras's."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.attention_parts import all_parts, class_name
from tf_sparse_attention.models.metrics import nats_of

SIGNATURES = ("score", "decode")
MAX_FILE_BYTES = 2**31  # both formats have signed 32-bit offsets
CHECKED_STEPS = 8
TOLERANCE = 1e-3
# Where two clusters are equally near to a token, rounding decides, and a runtime may round differently.
MAX_MISMATCHED = 0.01


class TokenFunction(NamedTuple):
    """One function of a file.

    Attributes:
        run: `tf.function` of tensors in the order of `inputs`; returns a dictionary of tensors by name.
        inputs: list of `tf.TensorSpec` with the names of the file's inputs.
    """

    run: Any
    inputs: list[tf.TensorSpec]


def token_functions(
    model: LanguageModel, signatures: Sequence[str], batch_size: int, sequence_length: int, max_length: int
) -> dict[str, TokenFunction]:
    """Returns {name: `TokenFunction`} for the requested `SIGNATURES`, or raises a `ValueError`."""
    _check(model, signatures)
    checks.check_count("batch_size", batch_size)
    functions = {}
    if "score" in signatures:
        check_length(model, "sequence_length", sequence_length)
        functions["score"] = _score_function(model, batch_size, sequence_length)
    if "decode" in signatures:
        check_length(model, "max_length", max_length)
        functions["decode"] = _decode_function(model, batch_size, max_length)
    return functions


def check_outputs(
    model: LanguageModel,
    functions: Mapping[str, TokenFunction],
    runtime: str,
    run: Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]],
) -> None:
    """Raises a `ValueError` if a runtime's outputs differ from Keras's, for random ids and the first steps.

    Args:
        model: the `LanguageModel`.
        functions: result of `token_functions`.
        runtime: name of the runtime, for the message.
        run: function of the name of one of `functions` and a dictionary of its inputs, arrays; returns a dictionary of
            its outputs.
    """
    draw = np.random.default_rng(0).integers
    for name, function in functions.items():
        empty = {spec.name: np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in function.inputs}
        own, other = dict(empty), dict(empty)  # each continues from its own outputs
        for step in range(CHECKED_STEPS if name == "decode" else 1):
            given: dict[str, Any] = {}
            given["token_ids"] = draw(model.backbone.vocabulary_size, size=empty["token_ids"].shape, dtype="int32")
            if name == "decode":
                given["index"] = np.full_like(empty["index"], step)
            own, other = {**own, **given}, {**other, **given}
            expected = {key: x.numpy() for key, x in function.run(*map(tf.constant, own.values())).items()}
            try:
                found = run(name, other)
            except RuntimeError as error:
                raise unsupported_model_error(model, runtime, error) from None
            _compare(name, expected, found, runtime)
            own |= {key: expected[f"new_{key}"] for key in own if f"new_{key}" in expected}
            other |= {key: found[f"new_{key}"] for key in own if f"new_{key}" in expected}


def unsupported_model_error(model: LanguageModel, runtime: str, reason: object) -> ValueError:
    """Returns the `ValueError` for a model that a runtime has no operations for, with a shortened reason."""
    reason = str(reason).strip().partition("\n")[0][:200].rstrip(".")
    patterns = ", ".join(sorted({class_name(part) for part in all_parts(model.backbone.get_config()["attention"])}))
    return ValueError(
        f"`model` must be one that {runtime} has operations for, as docs/portable.md lists them. A SavedModel has "
        f"them all: `export_saved_model`. Received: heads of {patterns}; the reason: {reason}."
    )


def check_kind(model: keras.Model, what: str, kind: type | tuple[type, ...] = LanguageModel) -> None:
    """Raises a `ValueError` unless `model` is a `LanguageModel`, or of another kind, on the TensorFlow backend."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{what} can be written on the TensorFlow backend alone. Save the model with `model.save('model.keras')`, "
            "and in a process with KERAS_BACKEND=tensorflow load it with `keras.models.load_model` and export it. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    if not isinstance(model, kind):
        names = " or ".join(f"`{each.__name__}`" for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"`model` must be a {names}. Received: model={model!r}.")


def _check(model, signatures):
    check_kind(model, "LiteRT and ONNX files")
    if not signatures or isinstance(signatures, str) or not set(signatures) <= set(SIGNATURES):
        raise ValueError(f"`signatures` must be some of {SIGNATURES}. Received: signatures={signatures!r}.")
    if not model.backbone.causal:
        raise ValueError("`model` must not see later tokens. Received: a backbone with causal=False.")
    if model.compute_dtype != "float32":
        raise ValueError(
            "`model` must compute in float32. Make one with dtype='float32' and the same weights "
            f"(`load_weights`). Received: compute dtype {model.compute_dtype}."
        )
    if "decode" in signatures and model.cache_unsupported_reason is not None:
        raise ValueError(
            f"`model` must be one that decodes with a cache: {model.cache_unsupported_reason}. "
            "`signatures=('score',)` leaves decoding out."
        )
    size = 4 * model.count_params()
    if size >= MAX_FILE_BYTES:
        raise ValueError(
            f"`model` must have weights of less than {MAX_FILE_BYTES:,} bytes, the largest that such a file can "
            f"hold. A SavedModel has no such limit: `export_saved_model`. Received: weights of {size:,} bytes."
        )


def check_length(model: LanguageModel, name: str, length: int) -> None:
    """Raises a `ValueError` unless `length` is a positive integer that the model has positions for."""
    checks.check_count(name, length)
    limit = model.backbone.max_length
    if limit is not None and length > limit:
        raise ValueError(f"`{name}` must be at most the {limit} positions of the model. Received: {name}={length}.")


def _score_function(model, batch_size, sequence_length):
    inputs = [tf.TensorSpec((batch_size, sequence_length), tf.int32, "token_ids")]

    def score(token_ids):
        # As in training, each token is predicted from those before it, with id 0 at the start.
        before = tf.pad(token_ids[:, :-1], [[0, 0], [1, 0]])
        return {"nats": nats_of(token_ids, model(before, training=False))}

    return TokenFunction(tf.function(score, input_signature=inputs, autograph=False), inputs)


def _decode_function(model, batch_size, max_length):
    empty = model.init_cache(batch_size, max_length)
    paths = list(_paths(empty))
    names = [re.sub(r"\W", "_", "_".join(path)) for path in paths]
    if len({"token_ids", "index", *names}) != len(names) + 2:
        raise ValueError(f"`model` must have layers whose names differ when joined by '_'. Received: {names}.")
    inputs = [tf.TensorSpec((batch_size, 1), tf.int32, "token_ids"), tf.TensorSpec((batch_size,), tf.int32, "index")]
    for name, path in zip(names, paths, strict=True):
        start = _at(empty, path)
        if np.any(start):
            raise ValueError(f"`model` must start from zeros. Received: a cache with others in {name}.")
        inputs.append(tf.TensorSpec(start.shape, start.dtype, name))

    def decode(token_ids, index, *cache):
        logits, new = model.decode(token_ids, _nested(paths, cache), index)
        return {
            "logits": logits[:, 0],
            **{f"new_{name}": _at(new, path) for name, path in zip(names, paths, strict=True)},
        }

    return TokenFunction(tf.function(decode, input_signature=inputs, autograph=False), inputs)


def _paths(cache, before=()):
    """Iterates over the paths of the tensors of a nested cache, tuples of names."""
    for name, inner in cache.items():
        if isinstance(inner, dict):
            yield from _paths(inner, (*before, name))
        else:
            yield (*before, name)


def _at(cache, path):
    for name in path:
        cache = cache[name]
    return cache


def _nested(paths, tensors):
    """Inverse of `_paths`: returns the nested cache of tensors."""
    cache: dict[str, Any] = {}
    for path, tensor in zip(paths, tensors, strict=True):
        inner = cache
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = tensor
    return cache


def _compare(name, expected, found, runtime):
    for key, right in expected.items():
        right, output = right.astype("float64"), np.asarray(found[key]).astype("float64")
        # Not `>`, so that NaN differs from everything.
        differs = ~(np.abs(output - right) <= TOLERANCE * np.maximum(1, np.abs(right)))
        if differs.mean() > MAX_MISMATCHED:
            raise ValueError(
                f"The outputs of the {runtime} file differ from the model's and it is not written. A SavedModel has "
                f"the same outputs: `export_saved_model`. Received: {differs.mean():.0%} of `{key}` of `{name}` differ."
            )
