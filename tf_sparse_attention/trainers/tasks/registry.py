"""Tasks by name: `config.task` is one of `NAMES`, or a module with a class `Task`."""

import importlib
import importlib.util
import os
from typing import Any

import ml_collections

from tf_sparse_attention.checks import did_you_mean
from tf_sparse_attention.trainers.tasks.task import check_read, missing_member

# Modules of this package with a task.
NAMES = ("language_model", "masked", "translate", "answer", "image", "audio", "speech", "classify")


def make_task(config: ml_collections.ConfigDict) -> Any:
    """Create the task of a configuration."""
    task_class = find_task_class(config.task)
    if not hasattr(task_class, "settings"):
        raise missing_member(task_class, "settings")
    for section, names in task_class.settings.items():
        for name in names:
            if name not in config[section]:
                raise ValueError(
                    f"`Task.settings` of {task_class.__module__} must have only settings of the configuration. "
                    f"Received: {section}.{name}.{did_you_mean(name, config[section])}"
                )
    check_read(config, config.task, task_class.settings)
    task = task_class(config)
    for name in ("source", "validation"):
        # Not `hasattr(task, name)`: the property `source` would open the data.
        if not hasattr(task_class, name) and name not in vars(task):
            raise missing_member(task_class, name)
    return task


def load_task(folder: str | os.PathLike, config: ml_collections.ConfigDict | None = None) -> Any:
    """Create the task of a run with its saved state. `config` replaces the run's configuration."""
    from tf_sparse_attention.trainers.shared import loading, workdir  # circular: `workdir` imports this module

    config = workdir.load_config(folder) if config is None else config
    task = find_task_class(config.task)(config, workdir.read_json(folder, workdir.STATE))
    with loading.convert_errors(workdir.open_workdir(folder) / workdir.STATE):
        task.get_state()
    return task


def text_source(config: ml_collections.ConfigDict) -> Any:
    """Return the source of a task with text, whose `documents(split)` are texts. Other tasks raise a `ValueError`."""
    from tf_sparse_attention.trainers.tasks.language_model import TextTask

    if not issubclass(find_task_class(config.task), TextTask):
        raise ValueError(f"`config.task` must be a task with text. Received: task={config.task}.")
    return make_task(config).source


def find_task_class(name: str) -> Any:
    """Return the class `Task` of one of `NAMES`, or of a module. Raise a `ValueError` if it does not exist."""
    module = f"tf_sparse_attention.trainers.tasks.{name}" if name in NAMES else name
    message = (
        f"`config.task` must be one of {', '.join(NAMES)}, or an importable module with a class `Task`: run the "
        f"command in the folder of the module, or add the folder to PYTHONPATH. Received: task={name}."
    )
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:  # invalid name, or a package that is missing or broken
        raise ValueError(message) from error
    task_class = None if spec is None else getattr(importlib.import_module(module), "Task", None)
    if task_class is None:
        raise ValueError(message)
    return task_class
