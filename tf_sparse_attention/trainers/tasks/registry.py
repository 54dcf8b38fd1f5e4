"""Finds tasks by name: `config.task` is the name of one here, or of a module with a class `Task`."""

import importlib
import importlib.util
import os
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


def load_task(folder: str | os.PathLike, config: ml_collections.ConfigDict | None = None) -> Any:
    """Returns the task of the run in a work folder.

    Args:
        folder: the work folder.
        config: a configuration to use instead of that of the run. Default: None.

    Raises:
        ValueError: If there is no run, or its task cannot be found.
    """
    from tf_sparse_attention.trainers.shared import damage, workdir  # which loads models of tasks

    config = workdir.load_config(folder) if config is None else config
    task = class_of(config.task)(config, workdir.read_json(folder, workdir.STATE))
    with damage.convert_errors(workdir.open_workdir(folder) / workdir.STATE):
        task.get_state()
    return task


def text_source(config: ml_collections.ConfigDict) -> Any:
    """Returns the text that a configuration names, whose `documents(split)` are the texts of a split.

    Raises:
        ValueError: If the task is none of text, or as `make_task`.
    """
    from tf_sparse_attention.trainers.tasks.text_task import TextTask

    if not issubclass(class_of(config.task), TextTask):
        raise ValueError(f"`config.task` must be a task of text, which has a vocabulary. Received: task={config.task}.")
    return make_task(config).source


def class_of(name: str) -> Any:
    """Returns the class `Task` of a name: one of `NAMES`, or the module of a custom task.

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
