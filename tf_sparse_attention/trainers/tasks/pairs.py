"""What tasks of pairs have in common: documents that are read and documents that are written, by one tokenizer."""

import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from tf_sparse_attention.models.backbone_options import merge_arguments
from tf_sparse_attention.trainers.shared import backbone_settings, components, evaluation, sample_sources, workdir
from tf_sparse_attention.trainers.tasks import generated_targets, language_model
from tf_sparse_attention.trainers.tasks.settings import SAMPLING, check_settings
from tf_sparse_attention.trainers.tasks.task import Examples, Trial
from tf_sparse_attention.trainers.tasks.text_task import TOKENIZER, TextTask

LINE = "This is a line of text."  # that an exported model is tried with
NUM_SHOWN = 2  # targets that are generated for TensorBoard
LABELS = {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L"}  # of scores of generated targets
ALONE = "without_source"

# Settings that all tasks of pairs need, and those that they read.
FIELDS = {"data": ("source_field", "target_field")}
DATA = (*TOKENIZER, *FIELDS["data"], "unit", "target_end")
MODEL = (
    *("cross_attention", "encoder_attention", "num_encoder_layers", "share_embeddings"),
    *("preset", "reproduce_reference", "tie_embeddings", "use_output_bias"),
)
TRAIN = ("generated_targets", "generated_beams", "label_smoothing")
GENERATE = ("prompt", "length", *SAMPLING)


class Validation(evaluation.TokenValidation):
    """Scores each target given its source and then without it, and targets that the model writes.

    Raises:
        ValueError: If all targets are empty, so that there are no bytes to divide bits by.
    """

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        super().__init__(task, model, split)  # there is no limit of pairs
        self.buckets = task.open_buckets(split)
        self._fits = np.flatnonzero(~self.buckets.is_too_long)
        if not self.num_bytes:
            raise ValueError(
                "`config.data.target_field` must have a text in some pair that is scored. "
                f"Received: {len(self._fits)} pairs of {task.source.name} with empty targets."
            )

    @functools.cached_property
    def num_bytes(self) -> int:
        """The bytes of the targets that are scored, those of pairs that fit."""
        target = self.buckets.target
        left_out = (target.document(pair)[:-1] for pair in np.flatnonzero(self.buckets.is_too_long))
        return target.num_bytes - sum(len(self.task.tokenizer.detokenize(ids).encode()) for ids in left_out)

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Returns all pairs, and again "without_source"."""
        return {name: self.buckets.evaluation_batches(use_source=name != ALONE) for name in ("", ALONE)}

    def figures(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Returns "loss" in nats per token of a target, bits per byte of it, and the perplexity per token."""
        nats, tokens = totals["nats"], totals["tokens"]
        return {
            "loss": nats / max(tokens, 1),
            "bits_per_byte": nats / math.log(2) / self.num_bytes,
            "perplexity": evaluation.perplexity(nats, tokens),
        }

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Returns the pairs that are scored, and those left out as too long, and the scores of generated targets.

        "empty_sources" and "empty_targets" are scored too. Targets are generated if `config.train.generated_targets`
        says so; then there are the scores of the task's `score_targets` and "generated_path".
        """
        empty = {f"empty_{side}s": count for side, count in self.buckets.num_empty.items()}
        counts = {"pairs": len(self._fits), "left_out": int(np.sum(self.buckets.is_too_long)), "bytes": self.num_bytes}
        return {**counts, **empty, **(self._generated(run) if run.devices.is_chief else {})}

    def _generated(self, run):
        wanted, pairs = self.task.config.train.generated_targets, self._fits
        if 0 <= wanted < len(pairs):
            pairs = pairs[np.linspace(0, len(pairs) - 1, wanted).astype("int64")]
        if not len(pairs):
            return {}
        path = workdir.generated_path(run.folder, self.split, self.task.source)
        settings = self.task.config.train.generated_beams, self.task.config.generate.length
        made = generated_targets.GeneratedTargets(path, [*run.identity, *settings])
        lines = made.complete(self.task, self.model, self.buckets, pairs)
        return {"generated": len(lines), **self.task.score_targets(lines), "generated_path": str(path)}

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        alone, count = scores[ALONE], scores.get("generated")
        empty = [f"{scores[name]} {name.replace('_', ' ')}" for name in ("empty_sources", "empty_targets")]
        counted = [f"{scores['left_out']} too long", *(text for text in empty if not text.startswith("0 "))]
        perplexities = [evaluation.number(found["perplexity"]) for found in (scores, alone)]
        rows = [
            ("pairs", f": {scores['pairs']}, {', '.join(counted)}"),
            ("bytes, tokens", f"{scores['bytes']}, {scores['tokens']} of targets"),
            ("bits per byte", f"{scores['bits_per_byte']:.4f}, without the source {alone['bits_per_byte']:.4f}"),
            ("perplexity per token", f"{perplexities[0]}, without the source {perplexities[1]}"),
        ]
        for name, unchanged in scores.get("of_sources", {}).items():
            text = f"{scores[name]:.2f} of {count} generated, {unchanged:.2f} of their sources"
            rows.append((LABELS[name], text))
        return [*rows, *(generated_targets.rows(scores["generated_path"]) if count else [])]

    def examples(self) -> Examples:
        """Returns generated targets of the first documents, with their sources and references."""
        tokenizer, pairs = self.task.tokenizer, self._fits[:NUM_SHOWN]
        sides = [[store.document(pair) for pair in pairs] for store in (self.buckets.source, self.buckets.target)]
        found = self.task.write_targets(self.model, sides[0], "greedy")
        texts = [*([tokenizer.detokenize(ids[:-1]) for ids in side] for side in sides), found]
        names = generated_targets.NAMES[1:]
        return Examples(
            texts={
                f"example_{number}/{name}": text
                for number, row in enumerate(zip(*texts, strict=True))
                for name, text in zip(names, row, strict=True)
            }
        )


class PairTask(TextTask):
    """Base class of the tasks of pairs; see `Task`. A subclass has `settings` and `score_targets`.

    With `config.model.cross_attention` the model is an encoder-decoder. Without it one language model reads a source
    and then the target, its only tokens that are scored.
    """

    validation = Validation

    @property
    def has_encoder(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return bool(self.config.model.cross_attention)

    @functools.cached_property
    def source(self) -> tsa.data.PairSource:
        """The two texts that `config.data` names, opened once: a file of them is read to know its fingerprint."""
        check_settings(self.config, FIELDS, {})
        return components.make_pair_source(self.config)

    def score_targets(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns the scores of generated targets by name, and those of the sources unchanged as "of_sources".

        Args:
            lines: what `GeneratedTargets.complete` returns.
        """
        raise NotImplementedError

    def open_buckets(self, split: str) -> tsa.data.PairBuckets:
        """Returns the pairs of a split by length."""
        data = self.config.data
        source = tsa.data.open_token_store(self.source.source, self.tokenizer, split)
        target = tsa.data.open_token_store(self.source.target, self.tokenizer, split)
        sizes = data.batch_size, data.sequence_length
        return tsa.data.PairBuckets(source, target, *sizes, as_prefix=not self.has_encoder)

    def training_batches(self) -> tsa.data.Batches:
        """Returns the pairs of the training split."""
        return self.open_buckets(self.config.data.train_split).training_batches(self.config.seed)

    def make_model(self) -> keras.Model:
        """Returns a `SequenceToSequence` with one vocabulary on both sides, or a `LanguageModel`."""
        if not self.has_encoder:
            return components.make_model(self.config, self.tokenizer.vocabulary_size)
        settings, vocabulary_size = backbone_settings.set_values(self.config.model), self.tokenizer.vocabulary_size
        arguments = backbone_settings.backbone_arguments(self.config)
        del arguments["causal"]  # that of a decoder, not of its encoder
        of_source = None if settings["share_embeddings"] else vocabulary_size
        head: dict[str, Any] = {name: settings[name] for name in ("tie_embeddings", "use_output_bias")}
        if "preset" in settings:
            more = {"source_vocabulary_size": of_source, "reproduce_reference": settings["reproduce_reference"]}
            return SequenceToSequence.from_preset(settings["preset"], vocabulary_size, **arguments, **more, **head)
        decoder, dtype = Backbone(vocabulary_size, **arguments), self.config.train.dtype
        parts = settings["encoder_attention"] or settings["attention"]
        changes = {"attention": {"parts": parts}, "dropout": {"tokens": 0.0}, "cross_attention": None}
        changes["num_layers"] = settings.get("num_encoder_layers", settings["num_layers"])
        encoder = Backbone(of_source, **merge_arguments(arguments, changes), causal=False)
        return SequenceToSequence(encoder, LanguageModel(decoder, dtype=dtype, **head), dtype=dtype)

    def compile_arguments(self) -> dict[str, Any]:
        """Returns the mean nats per token, of labels smoothed as `config.train.label_smoothing` says."""
        return {"loss": tsa.models.language_model_loss(self.config.train.label_smoothing)}

    def write_targets(self, model: Any, sources: Sequence[np.ndarray], strategy: Any) -> list[str]:
        """Returns the targets that a model writes of the ids of sources, with their ends, as text."""
        length, tokenizer = self.config.generate.length, self.tokenizer
        if self.has_encoder:
            return model.generate(sources, length, strategy, tokenizer=tokenizer)
        longest = max(map(len, sources)) + length
        found = model.generate(sources, longest, strategy, stop_token_ids=tokenizer.end_id)
        return [
            tokenizer.detokenize(ids[len(source) : len(source) + length])
            for source, ids in zip(sources, found, strict=True)
        ]

    def make_sample_source(self, model: Any) -> sample_sources.LocalModelSource:
        """Returns what writes targets of prompts with a model."""
        kind = sample_sources.TranslationSource if self.has_encoder else sample_sources.PrefixSource
        return kind(model, self.tokenizer, self.config.generate.to_dict())

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> Trial:
        """Writes what `export_sequence_to_sequence` does, or for a language model what `export_language_model` does."""
        if not self.has_encoder:
            return language_model.export(self, model, path, jit_compile, weight_dtype)
        options: dict[str, Any] = {"jit_compile": jit_compile, "weight_dtype": weight_dtype}
        tsa.export.export_sequence_to_sequence(model, path, self.tokenizer, **options)
        settings = {"max_length": 20, "temperature": 0.0, "top_p": 1.0, "seed": 0}
        return Trial("generate", {"text": [LINE], **settings}, lambda found: f"{LINE!r} becomes {found['text']!r}")
