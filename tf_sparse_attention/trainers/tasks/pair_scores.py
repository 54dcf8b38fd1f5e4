"""The scores of pairs: every target once, given its source and without it, and what the model writes itself."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_sparse_attention.trainers.shared import evaluation, scoring, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import EvaluationRun
from tf_sparse_attention.trainers.shared.resumable_sums import Progress
from tf_sparse_attention.trainers.tasks import generated_targets
from tf_sparse_attention.trainers.tasks.parts import Shown

NUM_SHOWN = 2  # targets that are generated for TensorBoard
LABELS = {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L"}  # of scores of generated targets
EMPTY = ("empty_sources", "empty_targets")
FIGURES = ("nats", "tokens", "bytes", "bits_per_byte", "perplexity")


class Validation:
    """Scores the targets of the validation split, each given its source and then without it, and shows generated ones.

    Args:
        task: a `PairTask`.
        model: its model.
        buckets: the `PairBuckets` of the split.
        execution: arguments of `keras.Model.compile`.

    Raises:
        ValueError: If all targets are empty, so that there are no bytes to divide bits by.
    """

    def __init__(self, task: Any, model: Any, buckets: Any, execution: dict[str, Any]) -> None:
        self.task = task
        self.model = model
        self.buckets = buckets
        if not self.num_bytes:
            raise ValueError(
                "`config.data.target_field` must have a text in some pair that is scored. "
                f"Received: {int(np.sum(~buckets.is_too_long))} pairs of {task.pairs.name} with empty targets."
            )
        self._scorer = scoring.make_scorer(model, execution, buckets.batch_size)

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
        batches = self.buckets.evaluation_batches(use_source=use_source)
        return scoring.sum_batches(self._scorer, devices, batches, callbacks=callbacks, **options)

    @functools.cached_property
    def num_bytes(self) -> int:
        """The bytes of the targets that are scored, those of pairs that fit."""
        target = self.buckets.target
        left_out = (target.document(pair)[:-1] for pair in np.flatnonzero(self.buckets.is_too_long))
        return target.num_bytes - sum(len(self.task.tokenizer.detokenize(ids).encode()) for ids in left_out)

    def show(self) -> Shown:
        """Returns generated targets of the first documents, beside their sources and what they should be."""
        tokenizer, stores = self.task.tokenizer, (self.buckets.source, self.buckets.target)
        pairs = np.flatnonzero(~self.buckets.is_too_long)[:NUM_SHOWN]
        sources, targets = ([store.document(pair) for pair in pairs] for store in stores)
        found = self.task.write_targets(self.model, sources, "greedy")
        rows = zip(
            *([tokenizer.detokenize(ids[:-1]) for ids in side] for side in (sources, targets)), found, strict=True
        )
        texts = {
            f"example_{number}/{name}": text
            for number, row in enumerate(rows)
            for name, text in zip(generated_targets.NAMES[1:], row, strict=True)
        }
        return Shown({}, texts, {})


def evaluate(task: Any, folder: str | os.PathLike, split: str) -> dict[str, Any]:
    """Returns the scores of the model in a work folder, see `Task.evaluate`, and writes them there."""
    run = EvaluationRun(folder, split, task.config, task.pairs)
    with run.devices.scope():
        validation = Validation(task, workdir.load_model(folder), task.open_buckets(split), run.execution)
        found = [_figures(validation, run, use_source) for use_source in (True, False)]
    written = _generate(validation, folder, split, run.identity) if run.devices.is_chief else {}
    buckets = validation.buckets
    counts = {"pairs": int(np.sum(~buckets.is_too_long)), "left_out": int(np.sum(buckets.is_too_long))}
    counts |= {f"empty_{side}s": count for side, count in buckets.num_empty.items()}
    result = {"split": split, "data": task.pairs.name, **counts, **found[0], "without_source": found[1]}
    return run.write({**result, **written})


def _generate(validation, folder, split, identity):
    """Returns the scores of as many generated targets as `config.train.generated_targets` says, and their file."""
    task = validation.task
    wanted = task.config.train.generated_targets
    pairs = np.flatnonzero(~validation.buckets.is_too_long)
    pairs = pairs if wanted < 0 else pairs[np.linspace(0, len(pairs) - 1, min(wanted, len(pairs))).astype("int64")]
    if not len(pairs):
        return {}
    path = workdir.generated_path(folder, split, task.pairs)
    settings = task.config.train.generated_beams, task.config.generate.length
    made = generated_targets.GeneratedTargets(path, [*identity, *settings])
    lines = made.complete(task, validation.model, validation.buckets, pairs)
    return {"generated": len(lines), **task.scores_of(lines), "generated_path": str(path)}


def _figures(validation, run, use_source):
    """Returns the `FIGURES` of all targets."""
    partial = run.resumable_sums(str(use_source))
    sums = validation.sums(run.devices, use_source, partial=partial, progress=Progress)
    metrics = scoring.compute_metrics(sums["nats"], int(sums["tokens"]), validation.num_bytes, 0)
    return {name: metrics[name] for name in FIGURES}


def as_text(scores: dict[str, Any]) -> str:
    """Returns the scores as text, a line each."""
    alone = scores["without_source"]
    empty = "".join(f", {scores[name]} {name.replace('_', ' ')}" for name in EMPTY if scores.get(name))
    perplexities = [evaluation.number(found["perplexity"]) for found in (scores, alone)]
    rows = [
        ("pairs", f"{scores['data']}, {scores['split']}: {scores['pairs']}, {scores['left_out']} too long{empty}"),
        ("bytes, tokens", f"{scores['bytes']}, {scores['tokens']} of targets"),
        ("bits per byte", f"{scores['bits_per_byte']:.4f}, without the source {alone['bits_per_byte']:.4f}"),
        ("perplexity per token", f"{perplexities[0]}, without the source {perplexities[1]}"),
    ]
    if scores.get("generated"):
        rows += [
            (LABELS[name], f"{scores[name]:.2f} of {scores['generated']} generated, {unchanged:.2f} of their sources")
            for name, unchanged in scores["of_sources"].items()
        ]
    text = "\n".join(f"{name:<22}{value}" for name, value in rows)
    examples = generated_targets.read(scores["generated_path"]) if scores.get("generated") else []
    return "\n".join([text, *([generated_targets.as_text(examples)] if examples else [])])
