"""Kinds of models that LiteRT and ONNX files are made of, and what they must be like."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from tf_sparse_attention.export.input_checks import check_kind
from tf_sparse_attention.layers import AttentionLayer
from tf_sparse_attention.models import (
    LanguageModel,
    SequenceClassifier,
    SequenceToSequence,
    SpeechRecognizer,
    TokenClassifier,
)

MAX_FILE_BYTES = 2**31  # both formats have signed 32-bit offsets
CACHED = ("encode", "decode")


class Kind(NamedTuple):
    """What is written of a kind of models.

    Attributes:
        signatures: names of the functions in a file.
        saved_model: name of the function that writes a SavedModel.
    """

    signatures: tuple[str, ...]
    saved_model: str


KINDS: dict[type, Kind] = {
    LanguageModel: Kind(("score", "decode"), "export_language_model"),
    SequenceToSequence: Kind(("encode", "score", "decode"), "export_sequence_to_sequence"),
    SpeechRecognizer: Kind(("transcribe",), "export_speech"),
    SequenceClassifier: Kind(("classify",), "export_classifier"),
    TokenClassifier: Kind(("classify",), "export_classifier"),
}
SIGNATURES = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.signatures))


def kind_of(model: keras.Model) -> Kind:
    """Returns the `Kind` of a model that is of one."""
    return next(kind for each, kind in KINDS.items() if isinstance(model, each))


def checked_signatures(model: keras.Model, signatures: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the requested signatures, None: all, in their order; or raises a `ValueError`, for the model too."""
    check_kind(model, "LiteRT and ONNX files", tuple(KINDS))
    known = kind_of(model).signatures
    if signatures is None:
        signatures = known
    if not signatures or isinstance(signatures, str) or not set(signatures) <= set(known):
        raise ValueError(f"`signatures` must be some of {known}. Received: signatures={signatures!r}.")
    _check_model(model, set(signatures))
    return tuple(name for name in known if name in signatures)


def _check_model(model, signatures):
    if isinstance(model, LanguageModel) and not model.backbone.causal:
        raise ValueError("`model` must not see later tokens. Received: a backbone with causal=False.")
    parts = [getattr(model, name) for name in ("encoder", "decoder", "backbone") if hasattr(model, name)]
    dtypes = sorted({part.compute_dtype for part in (model, *parts)} - {"float32"})
    if dtypes:
        raise ValueError(
            "`model` must compute in float32. Make one with dtype='float32' and the same weights "
            f"(`load_weights`). Received: compute dtype {dtypes[0]}."
        )
    reason = decoder_of(model).cache_unsupported_reason if signatures & set(CACHED) else None
    if reason is not None:
        raise ValueError(
            f"`model` must be one that decodes with a cache: {reason}. `signatures=('score',)` leaves decoding out."
        )
    size = 4 * model.count_params()
    if size >= MAX_FILE_BYTES:
        raise ValueError(
            f"`model` must have weights of less than {MAX_FILE_BYTES:,} bytes, the largest that such a file can "
            f"hold. A SavedModel has no such limit: `{kind_of(model).saved_model}`. "
            f"Received: weights of {size:,} bytes."
        )


def decoder_of(model: LanguageModel | SequenceToSequence) -> LanguageModel:
    """Returns the language model of an encoder-decoder, or the model itself."""
    return model.decoder if isinstance(model, SequenceToSequence) else model


def unsupported_model_error(model: keras.Model, runtime: str, reason: object) -> ValueError:
    """Returns the `ValueError` for a model that a runtime has no operations for, with a shortened reason."""
    reason = str(reason).strip().partition("\n")[0][:200].rstrip(".")
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, AttentionLayer)]
    patterns = ", ".join(sorted({type(layer).__name__ for layer in layers}))
    return ValueError(
        f"`model` must be one that {runtime} has operations for, as docs/portable.md lists them. A SavedModel has "
        f"them all: `{kind_of(model).saved_model}`. Received: heads of {patterns}; the reason: {reason}."
    )
