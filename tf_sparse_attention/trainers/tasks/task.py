"""What a run trains, and what tasks and programs hand to each other."""

import pathlib
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.tasks.settings import Names


class Task:
    """One kind of training: its data, its model, its scores and its samples. Base class of all tasks.

    A subclass is named `Task` and lies in a separate module, which `config.task` names. It has to have `settings`,
    `source`, `training_batches`, `make_model`, `validation`, `generate` and `export`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        state: what `get_state` of the task of an earlier start returned. Default: None, it is found in the data.

    Attributes:
        config: as above.
        settings: names of the settings that the task reads in addition to those of all tasks, by section.
        source: the data, which has a `name` and a `fingerprint`.
        validation: the subclass of `Validation` that scores the model.

    Example:

    >>> task = registry.make_task(config)
    >>> model = task.make_model()
    >>> model.compile("adam", **task.compile_arguments())
    >>> model.fit(task.training_batches().dataset(0, 100))
    """

    settings: ClassVar[Names]
    validation: ClassVar[Any]
    source: Any

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        self.config, self._state = config, state or {}

    def get_state(self) -> dict[str, Any]:
        """Returns what the model depends on in addition to its weights, such as a tokenizer: plain data by name.

        It is kept in the run folder. A run is resumed only if its data lead to the same state. By default nothing.
        """
        return {}

    def training_batches(self) -> tsa.data.Batches:
        """Returns the batches to train on, `(inputs, targets, weights)`."""
        raise NotImplementedError

    def make_model(self) -> keras.Model:
        """Returns the model, new and seeded by `config.seed`."""
        raise NotImplementedError

    def compile_arguments(self) -> dict[str, Any]:
        """Returns "loss" and "weighted_metrics" for `keras.Model.compile`.

        A metric named "loss" replaces Keras's mean over batches in reports. By default the mean nats per token.
        """
        return {"loss": tsa.models.language_model_loss()}

    def generate(self, model: Any, request: "Request", show: "Show | None" = None) -> "Generated":
        """Returns samples of a model and writes them.

        Args:
            model: the trained model.
            request: the `Request`.
            show: function of all samples so far, called whenever they grow. Default: None.

        Raises:
            ValueError: For a request that does not suit the task.
            KeyboardInterrupt: If it is interrupted before there is anything; later, the samples so far are returned.
        """
        raise NotImplementedError

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> "Trial":
        """Writes a SavedModel of a model, and returns what to try it with.

        Args:
            model: the trained model.
            path: the folder of the SavedModel.
            jit_compile, weight_dtype: see `export_language_model`.
        """
        raise NotImplementedError


class Examples(NamedTuple):
    """What TensorBoard shows of a model in addition to its scores.

    Attributes:
        scalars: numbers by name. Default: none.
        texts: texts by name. Default: none.
        pictures: uint8 arrays (height, width, 3 or 4) by name. Default: none.
        sounds: pairs of samples, int16 (T,), and samples per second by name. Default: none.
    """

    scalars: dict[str, float] = {}  # noqa: RUF012  # never changed
    texts: dict[str, str] = {}  # noqa: RUF012
    pictures: dict[str, Any] = {}  # noqa: RUF012
    sounds: dict[str, Any] = {}  # noqa: RUF012


class Request(NamedTuple):
    """What a task generates. None means the setting of the run's configuration.

    Attributes:
        prompt: `bytes`, the text to continue or to translate, or the WAV file to continue.
        complete: name of a split, the images of which are completed.
        num_samples: number of samples.
        length: maximum number of tokens to add.
        seed: of the first sample; sample i has `seed` + i.
        path: the file to write, or a folder in which a file is written. None: none.
        settings: of `tf_sparse_attention.generation.Sampling`, or `BeamSearch` with "num_beams".
    """

    prompt: bytes | None = None
    complete: str | None = None
    num_samples: int = 1
    length: int | None = None
    seed: int = 0
    path: Any = None
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


class Generated(NamedTuple):
    """What a task generated.

    Attributes:
        samples: dictionaries, each with "num_tokens", "seed" and "interrupted".
        text: what to print of them, without what was shown while it was generated.
        path: the file that was written, or None.
    """

    samples: list[dict[str, Any]]
    text: str
    path: Any


class Trial(NamedTuple):
    """What an exported model is tried with, in a process without the library.

    Attributes:
        signature: name of the signature.
        inputs: plain data by name, one row.
        describe: function of the outputs, plain data by name, that returns them as text.
    """

    signature: str
    inputs: dict[str, Any]
    describe: Callable[[dict[str, Any]], str]


Show = Callable[[list[dict[str, Any]]], None]
