"""The task of language models: the next token of a text, or with `config.data.mask_rate` its masked ones."""

import lzma
import math
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any, ClassVar

import keras
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.data.batches.windows import count_windows
from tf_sparse_attention.data.sources.text_source import official_word_count
from tf_sparse_attention.trainers.shared import components, evaluation, illustrations
from tf_sparse_attention.trainers.tasks.settings import LANGUAGE_MODEL, SAMPLING, Names
from tf_sparse_attention.trainers.tasks.task import Examples, Trial
from tf_sparse_attention.trainers.tasks.text_task import TOKENIZER, TextTask

LINE = "def main():"  # that an exported model is tried with


class Validation(evaluation.TokenValidation):
    """Scores each token of a text once, and shows samples, routes and the use of clusters."""

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        super().__init__(task, model, split, limit)
        self.store = tsa.data.open_token_store(task.source, task.tokenizer, split)
        self._clusters = illustrations.ClusterReports(model)
        if model.backbone.memory_length and task.config.data.overlap:
            raise ValueError(
                "`config.data.overlap` must be 0 for a model with segment memory, which has the text before as "
                f"context. Received: overlap={task.config.data.overlap}."
            )

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Returns windows, each without context, or with segment memory consecutive segments."""
        data = self.task.config.data
        sizes = {"max_windows": self.limit, "use_packing": data.use_packing}
        if self.model.backbone.memory_length:
            return {"": tsa.data.evaluation_segments(self.store, data.batch_size, data.sequence_length, **sizes)}
        sizes |= {"mask_rate": data.mask_rate, "overlap": data.overlap}
        return {"": tsa.data.evaluation_batches(self.store, data.batch_size, data.sequence_length, **sizes)}

    def figures(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Returns "loss" in nats per token, bits per byte, and perplexities.

        bits per byte = nats / (ln 2 bytes), perplexity = exp(nats / tokens), perplexity per word = exp(nats / words).
        The end of each document is a token that is predicted, but neither a byte nor a word. A perplexity that no float
        holds, or one per word of a text without words, is None.
        """
        nats, tokens = totals["nats"], totals["tokens"]
        counts = self._counts(tokens)
        return {
            "loss": nats / max(tokens, 1),
            "bits_per_byte": nats / math.log(2) / counts["bytes"],
            "perplexity": evaluation.perplexity(nats, tokens),
            "perplexity_per_word": evaluation.perplexity(nats, counts["words"]),
        }

    def _counts(self, tokens):
        """Returns the bytes and words of a number of tokens: those of the whole text in proportion."""
        store = self.store
        official = official_word_count(self.task.source.name, self.split, store.num_documents)
        if tokens != store.num_tokens:
            share = tokens / store.num_tokens
            return {"bytes": share * store.num_bytes, "words": share * store.num_words, "words_are": "counted"}
        if official is None:
            return {"bytes": store.num_bytes, "words": store.num_words, "words_are": "counted"}
        return {"bytes": store.num_bytes, "words": official, "words_are": "official"}

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Returns the bytes, words and windows, what gzip and xz make of the text, and the tokenizer.

        "words_are" "official" where their number is the published one of a complete split, else "counted".
        """
        data, tokenizer = self.task.config.data, self.task.tokenizer
        found = self._counts(scores["tokens"])
        found["windows"] = count_windows(self.store.num_tokens, data.sequence_length, data.overlap)
        if not data.mask_rate:  # otherwise only some of the bytes are scored, with context on both sides
            found |= compressed_bits_per_byte(self.task.source.documents(self.split))
        return {**found, "tokenizer": type(tokenizer).__name__, "vocabulary_size": tokenizer.vocabulary_size}

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        is_official = scores["words_are"] == "official"
        per_word = evaluation.number(scores["perplexity_per_word"]) if scores["words"] else "no words"
        return [
            ("text", ""),
            ("bytes, words, tokens", f"{scores['bytes']}, {scores['words']}, {scores['tokens']}"),
            ("the words are", "the official count" if is_official else "counted, split at white space"),
            ("bits per byte", f"{scores['bits_per_byte']:.4f}"),
            *((f"  {name}", f"{scores[name]:.4f}") for name in ("gzip -9", "xz -9") if name in scores),
            ("perplexity per token", evaluation.number(scores["perplexity"])),
            ("scored", f"{scores['tokens']} masked tokens alone")
            if scores["settings"]["mask_rate"]
            else ("perplexity per word", per_word),
        ]

    def examples(self) -> Examples:
        """Returns a text that the model writes, pictures of routes and of spans, and the use of clusters."""
        config, tokenizer = self.task.config, self.task.tokenizer
        first = self.store.document(0)[: config.data.sequence_length]
        shown = self._clusters.examples(first)
        pictures = dict(illustrations.pictures(self.model, tokenizer, tokenizer.detokenize(first)))
        texts = {}
        if config.model.causal:
            texts["sample"] = illustrations.sample_text(self.model, tokenizer, config.generate)
        return shown._replace(texts=shown.texts | texts, pictures=pictures | shown.pictures)


class Task(TextTask):
    """A language model of a text; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": ("pattern", "text_field", "text_feature", *TOKENIZER, "use_packing", "mask_rate", "overlap"),
        "model": (*LANGUAGE_MODEL, "memory_length"),
        "train": ("evaluation_windows",),
        "generate": ("prompt", "length", *SAMPLING),
    }
    validation = Validation

    def training_batches(self) -> tsa.data.Batches:
        """Returns the windows of the training split, or consecutive segments of it."""
        data = self.config.data
        store = tsa.data.open_token_store(self.source, self.tokenizer, data.train_split)
        if store.num_tokens < data.sequence_length:
            logging.warning(
                "The text has %d tokens, less than one window of config.data.sequence_length=%d: the rest is padding.",
                store.num_tokens,
                data.sequence_length,
            )
        logging.info("%s: %d tokens to train on", self.source.name, store.num_tokens)
        return components.make_batches(self.config, store)

    def make_model(self) -> keras.Model:
        """Returns a `LanguageModel`, see `components.make_model`."""
        return components.make_model(self.config, self.tokenizer.vocabulary_size)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> Trial:
        """Writes what `export_language_model` does."""
        return export(self, model, path, jit_compile, weight_dtype)


def export(task: TextTask, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> Trial:
    """Writes what `export_language_model` does for a task whose model is a language model; see `Task.export`."""
    data = task.config.data
    tsa.export.export_language_model(
        model,
        path,
        task.tokenizer,
        sequence_length=data.sequence_length,
        batch_size=data.batch_size,
        jit_compile=jit_compile,
        weight_dtype=weight_dtype,
    )

    def describe(found):
        counts = f"{found['nats']:.2f} nats, {found['num_bytes']} bytes"
        return f"{LINE!r} has {found['bits_per_byte']:.4f} bits per byte ({counts})"

    return Trial("score", {"text": [LINE]}, describe)


def compressed_bits_per_byte(documents: Iterable[bytes]) -> dict[str, float | None]:
    """Return the compression rates of gzip and xz, a baseline for bits per byte.

    Args:
        documents: iterable of `bytes`, compressed as one stream with the best settings of the programs.

    Returns:
        Dictionary with "gzip -9" and "xz -9", bits per byte; None for no bytes.
    """
    compressors: dict[str, Any] = {"gzip -9": zlib.compressobj(9, wbits=31), "xz -9": lzma.LZMACompressor(preset=9)}
    sizes = dict.fromkeys(compressors, 0)
    num_bytes = 0
    for document in documents:
        num_bytes += len(document)
        for name, compressor in compressors.items():
            sizes[name] += len(compressor.compress(document))
    for name, compressor in compressors.items():
        sizes[name] += len(compressor.flush())
    return {name: 8 * size / num_bytes if num_bytes else None for name, size in sizes.items()}
