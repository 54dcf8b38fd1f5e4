"""The functions of LiteRT and ONNX files, and the comparison of a runtime's outputs with Keras's."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.export.cache_tensors import CacheTensors
from tf_sparse_attention.export.encoder_functions import classify_function, transcribe_function
from tf_sparse_attention.export.encoder_tasks import check_encoder_inputs
from tf_sparse_attention.export.input_checks import check_length
from tf_sparse_attention.export.portable_function import PortableFunction
from tf_sparse_attention.export.portable_kinds import (
    CACHED,
    checked_signatures,
    decoder_of,
    kind_of,
    unsupported_model_error,
)
from tf_sparse_attention.export.source_functions import NO_SOURCE, encode_function, make_source
from tf_sparse_attention.export.token_functions import decode_function, score_function
from tf_sparse_attention.models import LanguageModel, SequenceToSequence, SpeechRecognizer
from tf_sparse_attention.models.encoder_task import EncoderTask

TOLERANCE = 1e-3
# Where two clusters are equally near to a token, rounding decides, and a runtime may round differently.
MAX_MISMATCHED = 0.01


class Sizes(NamedTuple):
    """The sizes of the inputs of a file: arguments of `export_litert` and `export_onnx`."""

    batch_size: int
    sequence_length: int
    max_length: int
    source_length: int


def portable_functions(
    model: keras.Model, signatures: Sequence[str] | None, sizes: Sizes
) -> dict[str, PortableFunction]:
    """Returns {name: `PortableFunction`} for the requested signatures, None: all; or raises a `ValueError`."""
    wanted = checked_signatures(model, signatures)
    checks.check_count("batch_size", sizes.batch_size)
    if isinstance(model, SpeechRecognizer):
        return {"transcribe": _transcribe(model, sizes)}
    if isinstance(model, EncoderTask):
        return {"classify": _classify(model, sizes)}
    return _functions_of_tokens(model, wanted, sizes)


def _transcribe(model, sizes):
    positions = model.encoder.max_length
    most = None if positions is None else positions * model.subsampling
    check_length("sequence_length", sizes.sequence_length, most)
    return transcribe_function(model, sizes.batch_size, sizes.sequence_length)


def _classify(model, sizes):
    check_encoder_inputs(model)
    check_length("sequence_length", sizes.sequence_length, getattr(model.encoder, "max_length", None))
    return classify_function(model, sizes.batch_size, sizes.sequence_length)


def _functions_of_tokens(
    model: LanguageModel | SequenceToSequence, wanted: Sequence[str], sizes: Sizes
) -> dict[str, PortableFunction]:
    decoder, source, functions = decoder_of(model), NO_SOURCE, {}
    if isinstance(model, SequenceToSequence):
        check_length("source_length", sizes.source_length, model.encoder.max_length)
        source = make_source(model, sizes.batch_size, sizes.source_length)
    if "score" in wanted:
        check_length("sequence_length", sizes.sequence_length, decoder.backbone.max_length)
        functions["score"] = score_function(decoder, source, sizes.batch_size, sizes.sequence_length)
    if set(CACHED) & set(wanted):
        check_length("max_length", sizes.max_length, decoder.backbone.max_length)
        cache = CacheTensors(decoder, sizes.batch_size, sizes.max_length, source.length)
        functions["encode"] = encode_function(source, cache)
        functions["decode"] = decode_function(decoder, cache, sizes.batch_size)
    return {name: functions[name] for name in wanted}


def check_outputs(
    model: keras.Model,
    functions: Mapping[str, PortableFunction],
    runtime: str,
    run: Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]],
) -> None:
    """Raises a `ValueError` if a runtime's outputs differ from Keras's, for random inputs and the first steps.

    Args:
        model: the model.
        functions: result of `portable_functions`.
        runtime: name of the runtime, for the message.
        run: function of the name of one of `functions` and a dictionary of its inputs, arrays; returns a dictionary of
            its outputs.
    """
    random = np.random.default_rng(0)
    own: dict[str, np.ndarray] = {}
    other: dict[str, np.ndarray] = {}  # each continues from its own outputs
    for name, function in functions.items():
        empty = {spec.name: np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in function.inputs}
        for call in range(function.num_calls):
            given = function.draw(random, call)
            mine, theirs = ({key: {**empty, **kept, **given}[key] for key in empty} for kept in (own, other))
            expected = {key: x.numpy() for key, x in function.run(*map(tf.constant, mine.values())).items()}
            try:
                found = run(name, theirs)
            except RuntimeError as error:
                raise unsupported_model_error(model, runtime, error) from None
            _compare(model, name, expected, found, runtime)
            own |= _next_inputs(expected)
            other |= _next_inputs(found)


def _next_inputs(outputs):
    return {key.removeprefix("new_"): x for key, x in outputs.items()}


def _compare(model, name, expected, found, runtime):
    for key, right in expected.items():
        right, output = right.astype("float64"), np.asarray(found[key]).astype("float64")
        # Not `>`, so that NaN differs from everything.
        differs = ~(np.abs(output - right) <= TOLERANCE * np.maximum(1, np.abs(right)))
        if differs.mean() > MAX_MISMATCHED:
            raise ValueError(
                f"The outputs of the {runtime} file differ from the model's and it is not written. A SavedModel has "
                f"the same outputs: `{kind_of(model).saved_model}`. "
                f"Received: {differs.mean():.0%} of `{key}` of `{name}` differ."
            )
