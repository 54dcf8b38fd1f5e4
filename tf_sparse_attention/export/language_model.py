"""SavedModels that score, continue and embed text wherever TensorFlow is, without this library."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.embedding import embed_function
from tf_sparse_attention.export.input_checks import check_kind, check_length
from tf_sparse_attention.export.readme import make_readme
from tf_sparse_attention.export.sampling_loop import generate_function
from tf_sparse_attention.export.scoring import score_function
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.remote_files import SAVED_MODEL, as_path, output_folder, raise_remote_errors


def export_saved_model(
    model: LanguageModel,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    sequence_length: int = 1024,
    batch_size: int = 8,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Writes a SavedModel with the signatures `score`, `generate` and `embed`: text in, text, numbers or vectors out.

    It runs where TensorFlow is installed, without this library and, unless the tokenizer is SentencePiece or WordPiece,
    without tensorflow-text. A README.md inside describes inputs and outputs, with an example.

    - `score`: text, string (B,) -> bits_per_byte and nats, float32 (B,), num_bytes and num_tokens, int32 (B,). Nothing
      is cut off: a text of more than `sequence_length` tokens is scored in consecutive windows, every token exactly
      once. As in `tf_sparse_attention.data.evaluation_batches`, a window starts without context; unlike there, no end
      of the document is scored, since a text sent here may be a piece of one. Empty text has 0 nats and 0 bits per
      byte.
    - `generate`: prompt, string (B,), max_length (tokens, prompt included), temperature (0: the most likely token each
      time), top_p and seed, scalars -> text and text_bytes, string (B,): each prompt with its continuation up to the
      end of the document, in `text` as valid UTF-8 with U+FFFD for what is not, in `text_bytes` as it is; num_tokens,
      int32 (B,), of prompt and continuation, and log_prob, float32 (B,), of the continuation. Row i of a seed draws the
      same in every batch, and the same as `LanguageModel.generate`. A prompt of more than `max_length` tokens and a
      setting out of range are errors.
    - `embed`: text, string (B,) -> embedding, float32 (B, D), the mean of the backbone's vectors over the tokens, in
      windows as above, 0 for empty text; num_tokens, int32 (B,).

    Texts and prompts are bytes, valid UTF-8 or not. The loop of `generate` is compiled by XLA for each of a few sizes
    (`bucket_length`) on first use, which takes some seconds.

    Args:
        model: `LanguageModel`, on the TensorFlow backend.
        path: folder to write, also at an address such as gs://bucket/model. It must not exist, or be empty, or hold an
            earlier export, which is replaced, on a local disk atomically.
        tokenizer: the tokenizer the model was trained with. Ids that it does not have are never sampled.
        sequence_length: maximal number of tokens in a window of `score`, best the length of training. Default: 1024.
        batch_size: maximal number of windows that `score` and `embed` compute at once. Default: 8.
        jit_compile: whether XLA compiles the loop of `generate`; False for servers without XLA. Default: True.
        weight_dtype: "int8" to quantize large weights to 8 bits, with a scale for each row or column: about a quarter
            of the size, and slightly different results, computed in the model's dtype. Default: None.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, tokenizer or path is not suitable.

    Example:
        >>> export_saved_model(model, "saved_model", ByteTokenizer(), sequence_length=1024)
        >>> served = tf.saved_model.load("saved_model")
        >>> served.signatures["score"](text=tf.constant(["def main():"]))["bits_per_byte"]
    """
    check_causal(model)
    check_tokenizer("tokenizer", tokenizer, model.backbone.vocabulary_size)
    check_length("sequence_length", sequence_length, model.backbone.max_length)
    checks.check_count("batch_size", batch_size)
    checks.check_switch("jit_compile", jit_compile)
    checks.check_choice("weight_dtype", weight_dtype, (None, "int8"))
    folder = checked_path(path)
    # A plain module: loading it needs no class of Keras or of this library. TensorFlow saves the variables that it
    # finds in attributes, among them the tables of a tokenizer.
    served = tf.Module(name="language_model")
    served.weights = weights = Weights(model, weight_dtype)
    served.tokenizer = tokenizer.trackable
    windows = weights, sequence_length, batch_size
    served.score = score_function(model, tokenizer, *windows)
    served.generate = generate_function(model, tokenizer, weights, jit_compile)
    served.embed = embed_function(model, tokenizer, *windows)
    readme = make_readme(model, tokenizer, weights, sequence_length, folder.name)
    write_module(served, folder, ("score", "generate", "embed"), readme)
    return folder


def check_causal(model: LanguageModel) -> None:
    """Raises a `ValueError` unless `model` is a causal `LanguageModel`, on the TensorFlow backend."""
    check_kind(model, "A SavedModel")
    if not model.backbone.causal:
        raise ValueError(
            "`model` must not see later tokens, or its scores are no probabilities. "
            "Received: a backbone with causal=False."
        )


def check_tokenizer(name: str, tokenizer: Tokenizer, vocabulary_size: int | None) -> None:
    """Raises a `ValueError` unless `tokenizer` is one, with no more ids than a model; None: it does not say."""
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"`{name}` must be a tokenizer of `tf_sparse_attention.data`. Received: {tokenizer!r}.")
    if vocabulary_size is not None and tokenizer.vocabulary_size > vocabulary_size:
        raise ValueError(
            f"`{name}` must have no more ids than the model. Received: a tokenizer with "
            f"{tokenizer.vocabulary_size} and a model with {vocabulary_size}."
        )


def checked_path(path: str | os.PathLike) -> Any:
    """Returns the folder of a SavedModel to write, or raises a `ValueError` where something else is."""
    place = as_path(path)
    with raise_remote_errors(place):
        is_free = not place.exists() or (
            place.is_dir() and ((place / SAVED_MODEL).exists() or not any(place.iterdir()))
        )
    if not is_free:
        raise ValueError(f"`path` must be new, or a folder that is empty or holds a SavedModel. Received: path={path}.")
    return place


def write_module(served: tf.Module, path: Any, names: Sequence[str], readme: str) -> None:
    """Writes a module with signatures, its attributes of these names, and a README.md beside it."""
    with output_folder(path, SAVED_MODEL) as temporary:
        signatures = {name: getattr(served, name) for name in names}
        tf.saved_model.save(served, os.fspath(temporary), signatures)
        (temporary / "README.md").write_text(readme, encoding="utf-8")
