"""The evaluation of a trained model: what `tsa-evaluate` does once its flags are read."""

import os
from typing import Any

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.data.sources.text_source import official_word_count
from tf_sparse_attention.trainers.shared import components, compression, scoring, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import EvaluationRun, with_overrides
from tf_sparse_attention.trainers.shared.resumable_sums import Progress


def evaluate(
    folder: str | os.PathLike, split: str = "test", overrides: ml_collections.ConfigDict | None = None
) -> dict[str, Any]:
    """Scores the model of a work folder on every token of a split, once, and writes the metrics there.

    Memory does not grow with the text. An evaluation that was killed resumes when it is started again.

    Args:
        folder: the work folder.
        split: name of the split, or a part of one in the syntax of TFDS.
        overrides: `overrides.overridable_settings()` with the settings to override. Default: None, none.

    Returns:
        Dictionary: "split", "data" (name of the text), "looks_ahead" (True, where heads of a causal model do), the
        metrics of `scoring.score`, "words_are" ("official" where the words are the published count of a complete split,
        else "counted"), "gzip -9" and "xz -9" in bits per byte (unless hidden tokens are scored), "backend",
        "tokenizer" and its "vocabulary_size", "settings" (of the windows), and "path", the file they were written to.

    Raises:
        ValueError: If there is no trained model, a setting is wrong, or the task ignores one of `overrides`.
    """
    config = with_overrides(workdir.load_config(folder), overrides)
    source = components.make_text_source(config)
    tokenizer = workdir.load_tokenizer(folder)
    store = tsa.data.open_token_store(source, tokenizer, split)
    run = EvaluationRun(folder, split, config, source)
    with run.devices.scope():
        model = workdir.load_model(folder)
        model.shrink_windows()
        scorer = scoring.make_scorer(model, run.execution, config.data.batch_size)
        partial = run.resumable_sums()
        metrics = scoring.score(scorer, store, run.devices, **run.sizes, partial=partial, progress=Progress)
    backbone = model.backbone
    ahead = {"looks_ahead": True} if backbone.causal and not backbone.causal_selection else {}
    result = {"split": split, "data": source.name, **ahead, **_with_official_words(metrics, source.name, split, store)}
    if config.data.mask_rate == 0:  # otherwise only some of the bytes are scored, with context on both sides
        result |= compression.compressed_bits_per_byte(source.documents(split))
    kind = {"tokenizer": type(tokenizer).__name__, "vocabulary_size": tokenizer.vocabulary_size}
    return run.write({**result, "backend": keras.backend.backend(), **kind, "settings": run.sizes})


def _with_official_words(metrics, name, split, store):
    """Returns the metrics with the perplexity per official word if there is an official count for the text."""
    words = official_word_count(name, split, store.num_documents) if metrics["tokens"] == store.num_tokens else None
    if words is None:
        return {**metrics, "words_are": "counted"}
    result = scoring.compute_metrics(metrics["nats"], metrics["tokens"], metrics["bytes"], words)
    return {**metrics, **result, "words_are": "official"}


def as_text(result: dict[str, Any]) -> str:
    """Returns the metrics as readable text, a line each."""
    rows = [
        ("text", f"{result['data']}, {result['split']}"),
        *([("note", "heads look ahead: no likelihood of the text")] if result.get("looks_ahead") else []),
        ("bytes, words, tokens", f"{result['bytes']}, {result['words']}, {result['tokens']}"),
        (
            "the words are",
            "the official count" if result["words_are"] == "official" else "counted, split at white space",
        ),
        ("bits per byte", f"{result['bits_per_byte']:.4f}"),
        *((f"  {name}", f"{result[name]:.4f}") for name in ("gzip -9", "xz -9") if name in result),
        ("perplexity per token", number(result["perplexity"])),
        *_per_word(result),
        ("seconds", f"{result['seconds']:.1f}"),
    ]
    return "\n".join(f"{name:<22}{value}" for name, value in rows)


def _per_word(result):
    if result["settings"]["mask_rate"]:
        return [("scored", f"{result['tokens']} hidden tokens alone")]
    return [("perplexity per word", number(result["perplexity_per_word"]) if result["words"] else "no words")]


def number(value: float | None) -> str:
    """Returns a number as text."""
    return "beyond any float" if value is None else f"{value:.5g}"
