"""Base class of tasks, checks of their settings, and the data classes that tasks and commands exchange."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.checks import did_you_mean
from tf_sparse_attention.trainers.configs import base

Names = Mapping[str, Sequence[str]]  # names of settings by section

# Settings that every task reads, in addition to `config.optimizer`.
COMMON: Names = {
    "data": (
        *("tfds", "path", "local_dir", "data_dir", "train_split", "validation_split"),
        *("sequence_length", "batch_size"),
    ),
    "model": (
        *("num_layers", "hidden_dim", "embedding_dim", "intermediate_dim", "activation", "attention", "sinusoidal"),
        *("num_local_layers", "norm", "dropout", "embedding_dropout", "activation_dropout", "token_dropout"),
        *("layer_norm_epsilon", "remat"),
    ),
    "train": (
        *("num_steps", "log_every", "evaluate_every", "checkpoint_every", "keep_checkpoints", "illustrate", "dtype"),
        *("jit_compile", "steps_per_execution", "num_logical_cpus", "model_parallel", "deterministic", "nonfinite"),
        *("shrink_windows_every", "shrink_windows_margin"),
    ),
}


def check_settings(config: ml_collections.ConfigDict, required: Names, excluded: Names) -> None:
    """Raise a `ValueError` if a required setting is missing, or an excluded setting is set.

    None, False, 0 and empty values count as missing.
    """
    for is_required, sections in ((True, required), (False, excluded)):
        for section, names in sections.items():
            for name in names:
                value = config[section][name]
                if bool(value) != is_required:
                    expected = "given" if is_required else "unset"
                    raise ValueError(
                        f"`config.{section}.{name}` must be {is_required if isinstance(value, bool) else expected} for "
                        f"task={config.task}. Received: {name}={value!r}."
                    )


def check_read(settings: ml_collections.ConfigDict, task: str, names: Names) -> None:
    """Raise a `ValueError` if a setting that the task ignores differs from its default.

    `settings` is a configuration or a part of one; None is not checked. The task reads `names` in addition to `COMMON`.
    """
    defaults = base.get_config().to_dict()
    for section, values in settings.to_dict().items():
        if section == "optimizer" or not isinstance(values, dict):
            continue
        for name in sorted(values.keys() - {*COMMON.get(section, ()), *names.get(section, ())}):
            value, default = values[name], defaults.get(section, {}).get(name)
            if value is not None and _plain(value) != _plain(default):
                is_unknown = name not in defaults.get(section, {})
                question = did_you_mean(name, defaults.get(section, {}), 1, similarity=0.75) if is_unknown else ""
                raise ValueError(
                    f"`config.{section}.{name}` must be unset for task={task}, which ignores it.{question} "
                    f"Received: {name}={value!r}. The default is {default!r}; see trainers/configs/base.py. A task "
                    "that reads a setting lists it in `Task.settings`."
                )


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


class Task:
    """Base class of training tasks, which define the data, model, scores and samples.

    `config.task` is the name of a module with a subclass named `Task`. The subclass must define `settings`, `source`,
    `training_batches`, `make_model`, `validation`, `generate` and `export`.

    Args:
        config: `ml_collections.ConfigDict` of the run.
        state: result of `get_state` when the run started. Default: None, computed from the data.

    Attributes:
        config: see above.
        settings: names of the settings that this task reads in addition to `COMMON`, by section.
        source: the data, with a `name` and a `fingerprint`.
        validation: subclass of `Validation` that scores the model.

    Example:

    >>> task = registry.make_task(config)
    >>> model = task.make_model()
    >>> model.compile("adam", **task.compile_arguments())
    >>> model.fit(task.training_batches().dataset(0, 100))
    """

    settings: ClassVar[Names]
    validation: ClassVar[Any]
    source: Any
    _required: ClassVar[Names] = {}  # see `check_settings`
    _excluded: ClassVar[Names] = {}

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        check_settings(config, self._required, self._excluded)
        self.config, self._state = config, state or {}

    def get_state(self) -> dict[str, Any]:
        """Return plain data by name that the model needs in addition to its weights, such as a tokenizer.

        The state is saved in the run directory. Resuming a run requires the same state. Default: empty.
        """
        return {}

    def training_batches(self) -> tsa.data.Batches:
        """Return the batches of the training split, `(inputs, targets, weights)`.

        Weights are float32 with the shape of the loss per element, 0 for padding. All batches have the same number of
        rows.
        """
        raise missing_member(type(self), "training_batches")

    def make_model(self) -> keras.Model:
        """Create the model, a `tsa.models.Model` with an attribute `backbone`. The random seed is set before."""
        raise missing_member(type(self), "make_model")

    def compile_arguments(self) -> dict[str, Any]:
        """Return "loss" and "weighted_metrics" for `keras.Model.compile`.

        In reports, a metric named "loss" replaces Keras's mean over batches. Default: the mean nats per token.
        """
        return {"loss": tsa.models.language_model_loss()}

    def generate(self, model: Any, request: "Request", show: "Show | None" = None) -> "Generated":
        """Generate samples with the trained model and write them to a file.

        Raises:
            ValueError: If the task does not support the request.
            KeyboardInterrupt: If interrupted before the first sample. Later interruptions return the samples so far.
        """
        raise missing_member(type(self), "generate")

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> "ExportTest":
        """Write a SavedModel of the trained model, see `export_language_model`, and return an example call of it."""
        raise missing_member(type(self), "export")


def missing_member(task_class: type, name: str) -> ValueError:
    """Return the error for a class of a task that lacks a required member."""
    return ValueError(
        f"`config.task` must be a module whose class `{task_class.__name__}` has `{name}`, see docs/tasks.md. "
        f"Received: {task_class.__module__}, without it."
    )


class Examples(NamedTuple):
    """Data for TensorBoard in addition to the scores, by name. The defaults are never changed."""

    scalars: dict[str, float] = {}  # noqa: RUF012
    texts: dict[str, str] = {}  # noqa: RUF012
    pictures: dict[str, Any] = {}  # noqa: RUF012  # uint8 (height, width, 3 or 4)
    sounds: dict[str, Any] = {}  # noqa: RUF012  # pairs of samples, int16 (T,), and samples per second


class Request(NamedTuple):
    """Request for samples. For fields that are None, the configuration of the run applies."""

    prompt: bytes | None = None  # text to continue or translate, or content of the WAV file to continue
    complete: str | None = None  # name of a split with images to complete
    num_samples: int = 1
    length: int | None = None  # maximum number of tokens to add
    seed: int = 0  # of the first sample; sample i has `seed` + i
    path: Any = None  # output file, or a folder for it; None: no output file
    # Arguments of `tf_sparse_attention.generation.Sampling`, or of `BeamSearch` with "num_beams".
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


class Generated(NamedTuple):
    """Generated samples."""

    samples: list[dict[str, Any]]  # with "num_tokens", "seed" and "interrupted" among others
    text: str  # text to print, without text that `show` has printed
    path: Any  # output file, or None


class ExportTest(NamedTuple):
    """Example call that tests an exported model in a process without the library."""

    signature: str  # name
    inputs: dict[str, Any]  # plain data by name, one row
    describe: Callable[[dict[str, Any]], str]  # function from the outputs, plain data by name, to a text


Show = Callable[[list[dict[str, Any]]], None]  # function of all samples so far, called whenever they grow
