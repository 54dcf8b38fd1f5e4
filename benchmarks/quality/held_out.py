"""Trained model of a run with windows of its held-out text."""

import os
from typing import Any, NamedTuple

import tf_sparse_attention as tsa
from benchmarks.quality import variants  # noqa: F401  # the classes of models that are loaded
from tf_sparse_attention.trainers.shared import workdir
from tf_sparse_attention.trainers.tasks import registry


class HeldOut(NamedTuple):
    """Model of a run and its evaluation data.

    Attributes:
        model: the `LanguageModel` of the run, not compiled.
        store: the `TokenStore` of the test split.
        batches: dataset of (inputs, targets, weights), with the batch settings of the run.
    """

    model: Any
    store: Any
    batches: Any


def open_held_out(folder: str | os.PathLike, max_windows: int | None = None) -> HeldOut:
    """Return the `HeldOut` of a run directory, with all or `max_windows` evenly spaced windows of the test split."""
    task = registry.load_task(folder)
    store = tsa.data.open_token_store(task.source, task.tokenizer, "test")
    sizes = {name: task.config.data[name] for name in ("batch_size", "sequence_length", "use_packing")}
    batches = tsa.data.evaluation_batches(store, **sizes, max_windows=max_windows)
    return HeldOut(workdir.load_model(folder), store, batches)
