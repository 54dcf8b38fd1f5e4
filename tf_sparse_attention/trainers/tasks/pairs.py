"""Base classes of tasks with pairs of documents: a source, and a target that the model generates."""

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.generation import BeamSearch
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from tf_sparse_attention.models.backbone_options import merge_arguments
from tf_sparse_attention.trainers.shared import components, evaluation, sampling, workdir
from tf_sparse_attention.trainers.tasks.language_model import TOKENIZER, TextTask
from tf_sparse_attention.trainers.tasks.task import Examples, ExportTest, Names

LINE = "This is a line of text."  # input that tests an exported model
BATCH_SIZE = 8  # of generated targets
NUM_SHOWN, SHOWN_CHARACTERS = 2, 400  # generated targets in TensorBoard and reports, and characters per text
TEXTS = ("source", "target", "generated")
LABELS = {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L"}  # names of scores in reports
WITHOUT_SOURCE = "without_source"


class Validation(evaluation.TokenValidation):
    """Scores of every target, with and without its source, and scores of generated targets."""

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        super().__init__(task, model, split)  # all pairs are scored
        self.buckets = task.open_buckets(split)
        self._fits = np.flatnonzero(~self.buckets.is_too_long)
        if not self.num_bytes:
            raise ValueError(
                "`config.data.target_field` must have text in at least one scored pair. "
                f"Received: {len(self._fits)} pairs of {task.source.name} with empty targets."
            )

    @functools.cached_property
    def num_bytes(self) -> int:
        """Number of bytes of the scored targets, without pairs that are too long."""
        target = self.buckets.target
        too_long = (target.document(pair)[:-1] for pair in np.flatnonzero(self.buckets.is_too_long))
        return target.num_bytes - sum(len(self.task.tokenizer.detokenize(ids).encode()) for ids in too_long)

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Return all pairs, and under "without_source" all targets without their sources."""
        buckets = self.buckets
        return {"": buckets.evaluation_batches(), WITHOUT_SOURCE: buckets.evaluation_batches(use_source=False)}

    def metrics(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Return the "loss" in nats per token, the bits per byte and the perplexity per token of targets."""
        nats, tokens = totals["nats"], totals["tokens"]
        return {
            "loss": nats / max(tokens, 1),
            "bits_per_byte": nats / math.log(2) / self.num_bytes,
            "perplexity": evaluation.perplexity(nats, tokens),
        }

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers of pairs and bytes, and the scores and file of generated targets, if any.

        "pairs" counts scored pairs, and "left_out" pairs that are too long. "empty_sources" and "empty_targets" count
        pairs of the whole split.
        """
        empty = {f"empty_{side}s": count for side, count in self.buckets.num_empty.items()}
        counts = {"pairs": len(self._fits), "left_out": int(np.sum(self.buckets.is_too_long)), "bytes": self.num_bytes}
        return {**counts, **empty, **(self._score_generated(run) if run.devices.is_chief else {})}

    def _score_generated(self, run):
        """Generate `config.train.generated_targets` targets of pairs, evenly spread, and score them."""
        settings, pairs = self.task.config.train, self._fits
        if 0 <= settings.generated_targets < len(pairs):
            pairs = pairs[np.linspace(0, len(pairs) - 1, settings.generated_targets).astype("int64")]
        if not len(pairs):
            return {}
        path = workdir.result_path(run.folder, "generated.jsonl", self.split, self.task.source)
        sizes = [len(pairs), settings.generated_beams, self.task.config.generate.length]
        partial = run.resumable_sums("generated", sizes)
        lines = generate_targets(self.task, self.model, self.buckets, pairs, partial)
        sampling.write_samples(lines, path)
        return {"generated": len(lines), **self.task.score_targets(lines), "generated_path": str(path)}

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        without, count = scores[WITHOUT_SOURCE], scores.get("generated")
        empty = [f"{scores[name]} {name.replace('_', ' ')}" for name in ("empty_sources", "empty_targets")]
        counts = [f"{scores['left_out']} too long", *(text for text in empty if not text.startswith("0 "))]
        perplexities = [evaluation.number(metrics["perplexity"]) for metrics in (scores, without)]
        rows = [
            ("pairs", f": {scores['pairs']}, {', '.join(counts)}"),
            ("bytes, tokens", f"{scores['bytes']}, {scores['tokens']} of targets"),
            ("bits per byte", f"{scores['bits_per_byte']:.4f}, without the source {without['bits_per_byte']:.4f}"),
            ("perplexity per token", f"{perplexities[0]}, without the source {perplexities[1]}"),
        ]
        for name, score_of_sources in scores.get("of_sources", {}).items():
            text = f"{scores[name]:.2f} ({count} generated targets), {score_of_sources:.2f} for their sources"
            rows.append((LABELS[name], text))
        if count:
            with pathlib.Path(scores["generated_path"]).open(encoding="utf-8") as file:
                for line in map(json.loads, itertools.islice(file, NUM_SHOWN)):
                    for name in TEXTS:
                        text = line[name]
                        rows.append((f"--- {name}\n", text[:SHOWN_CHARACTERS] + "..." * (len(text) > SHOWN_CHARACTERS)))
        return rows

    def examples(self) -> Examples:
        """Return generated targets of the first documents, with their sources and references."""
        lines = _generate_lines(self.task, self.model, self.buckets, self._fits[:NUM_SHOWN], "greedy")
        return Examples(
            texts={f"example_{index}/{name}": line[name] for index, line in enumerate(lines) for name in TEXTS}
        )


def generate_targets(
    task: "PairTask", model: Any, buckets: tsa.data.PairBuckets, pairs: np.ndarray, partial: evaluation.ResumableSums
) -> list[dict[str, Any]]:
    """Generate the targets of pairs, given by their indices, and resume an interrupted generation from `partial`.

    Returns:
        One dictionary per pair, in the order of `pairs`: "pair", "source", "target" and "generated".
    """
    by_length = pairs[np.argsort([len(buckets.source.document(pair)) for pair in pairs], kind="stable")]
    beams = task.config.train.generated_beams
    strategy = BeamSearch(num_beams=beams) if beams > 1 else "greedy"
    first, saved = partial.load()
    lines = saved["lines"] if saved else []
    for begin in range(first * BATCH_SIZE, len(pairs), BATCH_SIZE):
        lines += _generate_lines(task, model, buckets, by_length[begin : begin + BATCH_SIZE], strategy)
        partial.save(begin // BATCH_SIZE + 1, {"lines": lines})
        logging.info("%d of %d targets are generated.", len(lines), len(pairs))
    done = {line["pair"]: line for line in lines}
    return [done[int(pair)] for pair in pairs]


def _generate_lines(task, model, buckets, pairs, strategy):
    sides = [[store.document(pair)[:-1] for pair in pairs] for store in (buckets.source, buckets.target)]
    generated = task.make_sample_source(model).generate(sides[0], task.config.generate.length, strategy)
    texts = [*([task.tokenizer.detokenize(ids) for ids in side] for side in sides), generated]
    rows = zip(pairs, *texts, strict=True)
    return [{"pair": int(pair), **dict(zip(TEXTS, row, strict=True))} for pair, *row in rows]


class PairTask(TextTask):
    """Base class of tasks with pairs of a source and a target; see `Task`.

    With `config.model.cross_attention`, the model is an encoder-decoder. Without it, the model is a language model of
    the source followed by the target. Only targets are scored. A subclass defines `score_targets`.
    """

    settings: ClassVar[Names] = {
        "data": (*TOKENIZER, "source_field", "target_field", "unit", "target_end"),
        "model": (
            *("cross_attention", "encoder_attention", "num_encoder_layers", "share_embeddings"),
            *("preset", "reproduce_reference", "tie_embeddings", "use_output_bias"),
        ),
        "train": ("generated_targets", "generated_beams", "label_smoothing"),
        "generate": ("prompt", "length", *components.SAMPLING),
    }
    validation = Validation
    _required: ClassVar[Names] = {"data": ("source_field", "target_field")}

    @property
    def has_encoder(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return bool(self.config.model.cross_attention)

    @functools.cached_property
    def source(self) -> tsa.data.PairSource:
        """The pairs that `config.data` specifies. Cached, because opening a file computes its fingerprint."""
        fields = self.config.data.source_field, self.config.data.target_field
        return tsa.data.open_pairs(*fields, **components.data_settings(self.config, "unit", "target_end"))

    def score_targets(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Compute scores of the result of `generate_targets`, and under "of_sources" the scores of the sources."""
        raise NotImplementedError

    def open_buckets(self, split: str) -> tsa.data.PairBuckets:
        data = self.config.data
        source = tsa.data.open_token_store(self.source.source, self.tokenizer, split)
        target = tsa.data.open_token_store(self.source.target, self.tokenizer, split)
        sizes = data.batch_size, data.sequence_length
        return tsa.data.PairBuckets(source, target, *sizes, as_prefix=not self.has_encoder)

    def training_batches(self) -> tsa.data.Batches:
        return self.open_buckets(self.config.data.train_split).training_batches(self.config.seed)

    def make_model(self) -> keras.Model:
        """Create a `SequenceToSequence` with one vocabulary for both sides, or a `LanguageModel`."""
        if not self.has_encoder:
            return super().make_model()
        settings, vocabulary_size = components.set_values(self.config.model), self.tokenizer.vocabulary_size
        arguments = components.backbone_arguments(self.config)
        del arguments["causal"]  # decoders are causal, encoders are not
        source_vocabulary_size = None if settings["share_embeddings"] else vocabulary_size
        head: dict[str, Any] = {name: settings[name] for name in ("tie_embeddings", "use_output_bias")}
        if "preset" in settings:
            head["source_vocabulary_size"] = source_vocabulary_size
            head["reproduce_reference"] = settings["reproduce_reference"]
            return SequenceToSequence.from_preset(settings["preset"], vocabulary_size, **arguments, **head)
        decoder, dtype = Backbone(vocabulary_size, **arguments), self.config.train.dtype
        parts = settings["encoder_attention"] or settings["attention"]
        changes = {"attention": {"parts": parts}, "dropout": {"tokens": 0.0}, "cross_attention": None}
        changes["num_layers"] = settings.get("num_encoder_layers", settings["num_layers"])
        encoder = Backbone(source_vocabulary_size, **merge_arguments(arguments, changes), causal=False)
        return SequenceToSequence(encoder, LanguageModel(decoder, dtype=dtype, **head), dtype=dtype)

    def compile_arguments(self) -> dict[str, Any]:
        return {"loss": tsa.models.language_model_loss(self.config.train.label_smoothing)}

    def make_sample_source(self, model: Any) -> sampling.LocalModelSource:
        """Return the sample source of a model. Its prompts are sources."""
        source_class = sampling.TranslationSource if self.has_encoder else sampling.PrefixSource
        return source_class(model, self.tokenizer, self.config.generate.to_dict())

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> ExportTest:
        """Write a SavedModel with `export_sequence_to_sequence` or `export_language_model`."""
        if not self.has_encoder:
            return super().export(model, path, jit_compile, weight_dtype)
        options: dict[str, Any] = {"jit_compile": jit_compile, "weight_dtype": weight_dtype}
        tsa.export.export_sequence_to_sequence(model, path, self.tokenizer, **options)
        settings = {"max_length": 20, "temperature": 0.0, "top_p": 1.0, "seed": 0}
        return ExportTest(
            "generate", {"text": [LINE], **settings}, lambda sample: f"{LINE!r} becomes {sample['text']!r}"
        )
