"""Recall at lengths beyond training: `python -m benchmarks.quality.recall`.

Models of two layers with the heads of `config.py` and narrow windows (8, so both layers reach 14 positions back) learn
recall tasks at lengths of 64 to 256, and are tested at lengths up to 2,048. Each line of `recall.jsonl` is one model:
the accuracy of its answers by length. Models in the file are not trained again. Prints the tables.
"""

import argparse
import itertools
from typing import Any

import keras
import numpy as np
from keras import ops

from benchmarks.quality import config, results, tasks
from benchmarks.quality.cells import SEEDS
from benchmarks.quality.peers import KINDS as PEERS
from benchmarks.quality.tasks import TASKS, Task
from tf_sparse_attention import models

KINDS = ("local", "random", "nearest", "successors", "last_nearest", "last_successors", "selected", "native", "dense")


def build(task: Task, kind: str) -> models.LanguageModel:
    """Return a model with heads of a kind; the window of "dense" covers all lengths of the task."""
    window = max(task.test_lengths) if kind == "dense" else tasks.WINDOW

    def narrow(part):
        if isinstance(part, list):
            return [narrow(each) for each in part]
        return {**part, "window": window} if "window" in part else part

    parts = narrow(config.parts_of(kind, 1024))
    intermediate_dim = 4 * tasks.HIDDEN_DIM
    backbone = models.Backbone(task.vocabulary_size, tasks.NUM_LAYERS, tasks.HIDDEN_DIM, parts, intermediate_dim)
    return models.LanguageModel(backbone, tie_embeddings=task.tie_embeddings)


class Answers(keras.Model):
    """Language model with inputs token ids (B, T) and positions (B, A), and logits (B, A, V) at these positions."""

    def __init__(self, model: models.LanguageModel) -> None:
        super().__init__()
        self.model = model

    def call(self, inputs):
        token_ids, at = inputs
        return self.model.logits(ops.take_along_axis(self.model.backbone(token_ids), at[..., None], axis=1))


def train(task: Task, kind: str, seed: int, steps: int = tasks.STEPS) -> dict[str, dict[int, Any]]:
    """Train a model from a seed and return its `tasks.scores`."""
    keras.utils.set_random_seed(seed)
    model = Answers(build(task, kind))
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=tasks.LEARNING_RATE, warmup_steps=tasks.WARMUP_STEPS
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0)
    model.compile(optimizer, loss=models.language_model_loss(), jit_compile=True)
    for token_ids, targets in tasks.training_batches(task, seed, steps):
        at, answers = tasks.asked(targets)
        model.train_on_batch([token_ids, at], answers)
    return tasks.scores(lambda token_ids, at: model.predict_on_batch([token_ids, at]), task, seed)


def read() -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return {(task, kind, seed): result of `train`}, with lengths as strings."""
    return {(each["task"], each["kind"], each["seed"]): each for each in results.read_lines(tasks.RESULTS)}


def tables(found: dict[tuple[str, str, int], dict[str, Any]]) -> str:
    """Return a Markdown table per task: the lowest and highest accuracy over seeds, by length.

    A task with depths has a second table with means over seeds by depth. Tasks without results have only a name.
    """
    lines = []
    for name, task in TASKS.items():
        if name not in {own for own, _, _ in found}:
            lines += [f"{name.replace('_', ' ')}: not run", ""]
            continue
        lines += [f"{name.replace('_', ' ')}, learnt from {task.train_lengths[0]} to {task.train_lengths[-1]}", ""]
        lines += [*_table(name, found, "accuracy", _span), ""]
        if task.depths:
            lines += [f"The same at depths of {', '.join(f'{depth:g}' for depth in task.depths)}:", ""]
            lines += [*_table(name, found, "by_depth", _means), ""]
    return "\n".join(lines)


def _table(name, found, figure, show):
    """Return the lines of a table of one result; `show` formats the values of all seeds."""
    lengths = TASKS[name].test_lengths
    lines = [
        f"| heads | seeds | {' | '.join(f'{length:,}' for length in lengths)} |",
        "|---" * (2 + len(lengths)) + "|",
    ]
    peers = [kind for kind in PEERS if any((name, kind, seed) in found for seed in SEEDS)]
    for kind in (*KINDS, *peers):
        own = [found[name, kind, seed][figure] for seed in SEEDS if (name, kind, seed) in found]
        shown = [show([each[str(length)] for each in own]) for length in lengths]
        lines.append(f"| {kind} | {len(own)} | {' | '.join(shown)} |")
    return lines


def _means(lists):
    return ", ".join(f"{mean:.2f}" for mean in np.mean(lists, axis=0)) if lists else "-"


def _span(values):
    if not values:
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="default: all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of heads (default: all)")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    options = parser.parse_args()
    if not options.show:
        runs = itertools.product(options.tasks, options.kinds, SEEDS)
        keys = [{"task": task, "kind": kind, "seed": seed} for task, kind, seed in runs]
        results.run_missing(keys, lambda task, kind, seed: train(TASKS[task], kind, seed), tasks.RESULTS)
    print(tables(read()))


if __name__ == "__main__":
    main()
