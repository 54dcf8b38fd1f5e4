"""The scores of translations: every target once, given its source and without it, and what the model writes itself."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import tf_sparse_attention as tsa
from trainers.shared import evaluation, scoring, strategy, workdir
from trainers.shared.files import write_json
from trainers.shared.resumable_sums import Progress, ResumableSums
from trainers.tasks import translations
from trainers.tasks.parts import Shown

NUM_SHOWN = 2  # documents that are translated for TensorBoard
FIGURES = ("nats", "tokens", "bytes", "bits_per_byte", "perplexity")


class Validation:
    """Scores the targets of the validation split, each given its source and then without it, and shows translations.

    Args:
        task: a `trainers.tasks.translate.Task`.
        model: its model.
        stores: token stores of the sources and the targets.
        execution: arguments of `keras.Model.compile`.
    """

    def __init__(self, task: Any, model: Any, stores: Sequence[Any], execution: dict[str, Any]) -> None:
        self.task = task
        self.model = model
        self.source, self.target = stores
        data = task.config.data
        self.buckets = tsa.data.PairBuckets(self.source, self.target, data.batch_size, data.sequence_length)
        self._scorer = scoring.make_scorer(model, execution, data.batch_size)

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a token of a target, bits per byte of it, and both without the source."""
        found: dict[str, float] = {}
        for name, use_source in (("", True), ("without_source/", False)):
            sums = self.sums(devices, use_source, callbacks)
            found |= {f"{name}loss": sums["nats"] / max(sums["tokens"], 1)}
            found |= {f"{name}bits_per_byte": sums["nats"] / np.log(2) / self.num_bytes}
        return found

    def sums(self, devices: Any, use_source: bool, callbacks: Sequence[Any] = (), **options: Any) -> dict[str, float]:
        """Returns the nats and the tokens of all targets; `options` as for `scoring.sum_batches`."""
        make = functools.partial(self._batches, use_source)
        return scoring.sum_batches(
            self._scorer, devices, make, self.buckets.num_batches, callbacks=callbacks, **options
        )

    def _batches(self, use_source, first, count, **shard):
        return self.buckets.evaluation_batches(use_source, first, count, **shard)

    @functools.cached_property
    def num_bytes(self) -> int:
        """The bytes of the targets that are scored, those of pairs that fit."""
        left_out = (self.target.document(pair)[:-1] for pair in np.flatnonzero(self.buckets.is_too_long))
        return self.target.num_bytes - sum(len(self.task.tokenizer.detokenize(ids).encode()) for ids in left_out)

    def show(self) -> Shown:
        """Returns translations of the first documents, beside their sources and what they should be."""
        length, tokenizer = self.task.config.generate.length, self.task.tokenizer
        pairs = np.flatnonzero(~self.buckets.is_too_long)[:NUM_SHOWN]
        sources, targets = ([store.document(pair) for pair in pairs] for store in (self.source, self.target))
        found = self.model.generate(sources, length, tokenizer=tokenizer)
        rows = zip(
            *([tokenizer.detokenize(ids[:-1]) for ids in side] for side in (sources, targets)), found, strict=True
        )
        names = ("source", "target", "translation")
        texts = {
            f"example_{number}/{name}": text
            for number, row in enumerate(rows)
            for name, text in zip(names, row, strict=True)
        }
        return Shown({}, texts, {})


def evaluate(task: Any, folder: str | os.PathLike, split: str) -> dict[str, Any]:
    """Returns the scores of the model in a work folder, see `Task.evaluate`, and writes them there."""
    config, pairs = task.config, task.pairs
    devices = strategy.choose_devices(config)
    path = workdir.evaluation_path(folder, split, None)
    with devices.scope():
        execution = devices.execution(config.train.jit_compile, config.train.steps_per_execution)
        validation = Validation(task, workdir.load_model(folder), task.open_stores(split), execution)
        buckets = validation.buckets
        identity = [pairs.fingerprint, split, buckets.max_length, workdir.model_version(folder), buckets.batch_size]
        found, partials = [], []
        for use_source in (True, False):
            partials.append(ResumableSums(path.with_suffix(f".{use_source}.partial.json"), [*identity, use_source]))
            found.append(_figures(validation, devices, use_source, partials[-1]))
    written = _translate(task, validation, folder, split, identity)
    counts = {"pairs": int(np.sum(~buckets.is_too_long)), "left_out": int(np.sum(buckets.is_too_long))}
    result = {"split": split, "data": pairs.name, **counts, **found[0], "without_source": found[1]}
    result |= {**written, "path": str(path)}
    if devices.is_chief:
        write_json(path, result)
        for partial in partials:
            partial.remove()
    return result


def _translate(task, validation, folder, split, identity):
    """Returns the scores of as many translations as `config.train.evaluation_translations` says, and their file."""
    wanted, devices = task.config.train.evaluation_translations, strategy.choose_devices(task.config)
    pairs = np.flatnonzero(~validation.buckets.is_too_long)
    pairs = pairs if wanted < 0 else pairs[np.linspace(0, len(pairs) - 1, min(wanted, len(pairs))).astype("int64")]
    if not len(pairs) or not devices.is_chief:
        return {}
    path = workdir.translations_path(folder, split)
    settings = task.config.train.evaluation_beams, task.config.generate.length
    made = translations.Translations(path, [*identity, *settings])
    lines = made.complete(task, validation.model, (validation.source, validation.target), pairs)
    return {**translations.scores_of(lines), "translations_path": str(path)}


def _figures(validation, devices, use_source, partial):
    """Returns the `FIGURES` of all targets."""
    resumable = partial if devices.is_single_process else None
    sums = validation.sums(devices, use_source, partial=resumable, progress=Progress)
    metrics = scoring.compute_metrics(sums["nats"], int(sums["tokens"]), validation.num_bytes, 0)
    return {name: metrics[name] for name in FIGURES}


def as_text(scores: dict[str, Any]) -> str:
    """Returns the scores as text, a line each."""
    alone = scores["without_source"]
    perplexities = [evaluation.number(found["perplexity"]) for found in (scores, alone)]
    rows = [
        ("pairs", f"{scores['data']}, {scores['split']}: {scores['pairs']}, {scores['left_out']} too long"),
        ("bytes, tokens", f"{scores['bytes']}, {scores['tokens']} of targets"),
        ("bits per byte", f"{scores['bits_per_byte']:.4f}, without the source {alone['bits_per_byte']:.4f}"),
        ("perplexity per token", f"{perplexities[0]}, without the source {perplexities[1]}"),
    ]
    if scores.get("translations"):
        unchanged = scores["of_sources"]
        rows += [
            (name, f"{scores[key]:.2f} of {scores['translations']} translations, {unchanged[key]:.2f} of their sources")
            for name, key in (("BLEU", "bleu"), ("chrF", "chrf"))
        ]
    text = "\n".join(f"{name:<22}{value}" for name, value in rows)
    examples = translations.read(scores["translations_path"]) if scores.get("translations") else []
    return "\n".join([text, *([translations.as_text(examples)] if examples else [])])
