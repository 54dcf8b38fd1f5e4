"""Tasks: what a run trains. `config.task` names one; each is a class `Task` in a file of its own.

`Task(config)` has

- `open_data()`, the `TrainingData`;
- `make_model()`, `make_training_model(model)`, the model to call `fit` on, `make_loss()` and `make_metrics()`, weighted
  metrics of training: one named "loss" is reported in place of Keras's mean over batches;
- `make_validation(model, execution)`, which has `score(devices, callbacks)`, a dictionary of numbers by name, and
  `show()`, a `Shown`;
- `evaluate(folder, split, overrides)`, the scores of the model in a work folder, a dictionary that is also written
  there, and `as_text(scores)`;
- `generate(folder, request, show)`, samples of the model in a work folder, a `Generated` that is also written there;
- `export(folder, jit_compile, weight_dtype)`, which writes a SavedModel there, see `export_saved_model`, and returns a
  dictionary with its "path" and a "proof", what it says in a process without this library;
- `save(folder)`, which writes what a trained model needs beside its weights, `check(folder)`, which raises a
  `ValueError` where that of an earlier start differs, and `load(folder)`, which makes the task of a work folder.
"""

import importlib
import os
from typing import Any

import ml_collections

# The module of each task.
NAMES = ("language_model", "masked", "translate", "answer", "image", "audio", "speech", "classify")


def make_task(config: ml_collections.ConfigDict) -> Any:
    """Returns the task that `config.task` names.

    Raises:
        ValueError: If there is no such task, or a setting of it is wrong.
    """
    return _class_of(config)(config)


def load_task(folder: str | os.PathLike) -> Any:
    """Returns the task of the run in a work folder."""
    from trainers.shared import workdir  # which loads models of tasks

    return _class_of(workdir.load_config(folder)).load(folder)


def _class_of(config):
    if config.task not in NAMES:
        raise ValueError(f"`config.task` must be one of {', '.join(NAMES)}. Received: task={config.task}.")
    return importlib.import_module(f"trainers.tasks.{config.task}").Task
