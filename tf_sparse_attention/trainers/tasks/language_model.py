"""Language modeling of text: predict the next token, or the masked tokens if `config.data.mask_rate` is set."""

import functools
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
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, evaluation, illustrations, sampling
from tf_sparse_attention.trainers.tasks import task
from tf_sparse_attention.trainers.tasks.task import Examples, ExportTest, Generated, Names, Request, Show

TOKENIZER = ("tokenizer", "vocabulary")  # settings of `config.data`
LINE = "def main():"  # input that tests an exported model


class TextTask(task.Task):
    """Base class of tasks with text. The `source` has `documents(split)`, the texts of a split; see `Task`."""

    @functools.cached_property
    def source(self) -> Any:
        return tsa.data.open_source(**components.data_settings(self.config, *base.SOURCE_SETTINGS))

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer in the state of the run, or the tokenizer that `config.data` specifies."""
        if "tokenizer" in self._state:
            return components.from_description(self._state["tokenizer"])
        return components.make_tokenizer(self.config.data.tokenizer, self.config.data.vocabulary)

    def get_state(self) -> dict[str, Any]:
        return {"tokenizer": components.describe(self.tokenizer)}

    def make_model(self) -> keras.Model:
        """Create a `LanguageModel`; see `components.make_model`."""
        return components.make_model(self.config, self.tokenizer.vocabulary_size)

    def make_sample_source(self, model: Any) -> sampling.LocalModelSource:
        return sampling.LocalModelSource(model, self.tokenizer, self.config.generate.to_dict())

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Generate text; see `sampling.generate`."""
        return sampling.generate(self.make_sample_source(model), request, show)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> ExportTest:
        sizes = {name: self.config.data[name] for name in ("sequence_length", "batch_size")}
        options: dict[str, Any] = {**sizes, "jit_compile": jit_compile, "weight_dtype": weight_dtype}
        tsa.export.export_language_model(model, path, self.tokenizer, **options)

        def describe(scores):
            counts = f"{scores['nats']:.2f} nats, {scores['num_bytes']} bytes"
            return f"{LINE!r} has {scores['bits_per_byte']:.4f} bits per byte ({counts})"

        return ExportTest("score", {"text": [LINE]}, describe)


class Validation(evaluation.TokenValidation):
    """Scores of every token of a text. Examples are a sample, pictures of routes, and cluster statistics."""

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        components.check_objective(task.config)
        super().__init__(task, model, split, limit)
        self.store = tsa.data.open_token_store(task.source, task.tokenizer, split)
        self._clusters = illustrations.ClusterReports(model)
        if model.backbone.memory_length and task.config.data.overlap:
            raise ValueError(
                "`config.data.overlap` must be 0 for a model with segment memory. "
                f"Received: overlap={task.config.data.overlap}."
            )

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Return windows without context, or consecutive segments for a model with segment memory."""
        data = self.task.config.data
        sizes = {"max_windows": self.limit, "use_packing": data.use_packing}
        if self.model.backbone.memory_length:
            return {"": tsa.data.evaluation_segments(self.store, data.batch_size, data.sequence_length, **sizes)}
        sizes |= {"mask_rate": data.mask_rate, "overlap": data.overlap}
        return {"": tsa.data.evaluation_batches(self.store, data.batch_size, data.sequence_length, **sizes)}

    def metrics(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Return "loss" in nats per token, bits per byte, and perplexities.

        bits per byte = nats / (ln 2 bytes), perplexity = exp(nats / tokens), perplexity per word = exp(nats / words).
        The end of a document is a predicted token, but neither a byte nor a word. A perplexity is None if it overflows,
        or if the text has no words.
        """
        nats, tokens = totals["nats"], totals["tokens"]
        counts = self._counts(tokens)
        return {
            "loss": nats / max(tokens, 1),
            "bits_per_byte": nats / math.log(2) / counts["bytes"] if counts["bytes"] else None,
            "perplexity": evaluation.perplexity(nats, tokens),
            "perplexity_per_word": evaluation.perplexity(nats, counts["words"]),
        }

    def _counts(self, tokens):
        """Return the numbers of bytes and words for a number of tokens, in proportion to the whole text."""
        store = self.store
        is_whole = tokens == store.num_tokens
        official = official_word_count(self.task.source.name, self.split, store.num_documents) if is_whole else None
        share = 1 if is_whole else tokens / store.num_tokens
        words, kind = (share * store.num_words, "counted") if official is None else (official, "official")
        return {"bytes": share * store.num_bytes, "words": words, "words_are": kind}

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers of bytes, words and windows, the compression rates of gzip and xz, and the tokenizer.

        "words_are" is "official" if "words" is the published number of a complete split, otherwise "counted".
        """
        data, tokenizer = self.task.config.data, self.task.tokenizer
        details = self._counts(scores["tokens"])
        details["windows"] = count_windows(self.store.num_tokens, data.sequence_length, data.overlap)
        if not data.mask_rate:  # scores of masked tokens, with context on both sides, are not comparable
            details |= compressed_bits_per_byte(self.task.source.documents(self.split))
        return {**details, "tokenizer": type(tokenizer).__name__, "vocabulary_size": tokenizer.vocabulary_size}

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        is_official = scores["words_are"] == "official"
        per_word = evaluation.number(scores["perplexity_per_word"]) if scores["words"] else "no words"
        return [
            ("text", ""),
            ("bytes, words, tokens", f"{scores['bytes']}, {scores['words']}, {scores['tokens']}"),
            ("words", "official count" if is_official else "split at white space"),
            ("bits per byte", "no bytes" if scores["bits_per_byte"] is None else f"{scores['bits_per_byte']:.4f}"),
            *((f"  {name}", f"{scores[name]:.4f}") for name in ("gzip -9", "xz -9") if name in scores),
            ("perplexity per token", evaluation.number(scores["perplexity"])),
            ("scored", f"only the {scores['tokens']} masked tokens")
            if scores["settings"]["mask_rate"]
            else ("perplexity per word", per_word),
        ]

    def examples(self) -> Examples:
        """Return a generated text, pictures of routes and spans, and cluster statistics."""
        config, tokenizer = self.task.config, self.task.tokenizer
        ids = self.store.document(0)[: config.data.sequence_length]
        clusters = self._clusters.examples(ids)
        pictures = dict(illustrations.pictures(self.model, tokenizer, tokenizer.detokenize(ids)))
        texts = {}
        if config.model.causal:
            texts["sample"] = self.task.generate(self.model, Request()).samples[0]["text"]
        return clusters._replace(texts=clusters.texts | texts, pictures=pictures | clusters.pictures)


class Task(TextTask):
    """Language modeling of text; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": ("pattern", "text_field", "text_feature", *TOKENIZER, "use_packing", "mask_rate", "overlap"),
        "model": (*components.LANGUAGE_MODEL, "memory_length"),
        "train": ("evaluation_windows",),
        "generate": ("prompt", "length", *components.SAMPLING),
    }
    validation = Validation

    def training_batches(self) -> tsa.data.Batches:
        """Return random windows, or consecutive segments, of the training split."""
        data = self.config.data
        store = tsa.data.open_token_store(self.source, self.tokenizer, data.train_split)
        if store.num_tokens < data.sequence_length:
            logging.warning(
                "The text has %d tokens, fewer than config.data.sequence_length=%d: windows are padded.",
                store.num_tokens,
                data.sequence_length,
            )
        logging.info("%s: %d training tokens", self.source.name, store.num_tokens)
        return components.make_batches(self.config, store)


def compressed_bits_per_byte(documents: Iterable[bytes]) -> dict[str, float | None]:
    """Return the bits per byte of "gzip -9" and "xz -9" for documents as one stream. None: no bytes."""
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
