"""Tasks: what a run trains. `config.task` names one; each is a class `Task` in a file of its own.

A class `Task` has `settings`, the names of the settings that it reads beside those of all tasks, by section, see
`trainers.tasks.settings`; one of text has `training_texts(config)`, for `tsa-vocabulary`. `Task(config)` has

- `open_data()`, the `TrainingData`;
- `make_model()`, `make_training_model(model)`, the model to call `fit` on, `make_loss()` and `make_metrics()`, weighted
  metrics of training: one named "loss" is reported in place of Keras's mean over batches;
- `make_validation(model, execution)`, which has `score(devices, callbacks)`, a dictionary of numbers by name, and
  `show()`, a `Shown`;
- `evaluate(folder, split, overrides)`, the scores of the model in a work folder, a dictionary that is also written
  there, and `as_text(scores)`;
- `generate(folder, request, show)`, samples of the model in a work folder, a `Generated` that is also written there;
- `export(folder, jit_compile, weight_dtype)`, which writes a SavedModel there, see `export_language_model`, and returns
  a dictionary with its "path" and a "proof", what it says in a process without this library;
- `save(folder)`, which writes what a trained model needs beside its weights, `check(folder)`, which raises a
  `ValueError` where that of an earlier start differs, and `load(folder)`, which makes the task of a work folder.
"""

import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import ml_collections

from tf_sparse_attention.trainers.tasks.settings import check_read

# The modules of the tasks here.
NAMES = ("language_model", "masked", "translate", "answer", "image", "audio", "speech", "classify")


def make_task(config: ml_collections.ConfigDict) -> Any:
    """Returns the task that `config.task` names.

    Raises:
        ValueError: If there is no such task, a setting of it is wrong, or it ignores one that is given.
    """
    kind = class_of(config.task)
    check_read(config, config.task, kind.settings)
    return kind(config)


def load_task(folder: str | os.PathLike) -> Any:
    """Returns the task of the run in a work folder.

    Raises:
        ValueError: If there is no run, or its task cannot be found.
    """
    from tf_sparse_attention.trainers.shared import workdir  # which loads models of tasks

    return class_of(workdir.load_config(folder).task).load(folder)


def training_texts(config: ml_collections.ConfigDict) -> tuple[str, Iterator[bytes]]:
    """Returns the name of the text that a configuration names, and the documents of its training split.

    Raises:
        ValueError: If there is no such task, it is none of text, or it ignores a setting that is given.
    """
    kind = class_of(config.task)
    check_read(config, config.task, kind.settings)
    if not hasattr(kind, "training_texts"):
        raise ValueError(f"`config.task` must be a task of text, which has a vocabulary. Received: task={config.task}.")
    return kind.training_texts(config)


def class_of(name: str) -> Any:
    """Returns the class `Task` of a name: one of `NAMES`, or the module of a task of your own.

    Raises:
        ValueError: If there is none.
    """
    module = f"tf_sparse_attention.trainers.tasks.{name}" if name in NAMES else name
    message = (
        f"`config.task` must be one of {', '.join(NAMES)}, or a module with a class `Task` that Python finds. "
        f"Received: task={name}."
    )
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:  # of a package that is missing or broken, or a name that none has
        raise ValueError(message) from error
    kind = None if spec is None else getattr(importlib.import_module(module), "Task", None)
    if kind is None:
        raise ValueError(message)
    return kind
