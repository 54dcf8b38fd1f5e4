"""What the evaluations of all tasks share: their settings, where their scores go, and how a killed one resumes."""

import copy
import os
from typing import Any

import ml_collections

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, workdir
from tf_sparse_attention.trainers.shared.devices import choose_devices
from tf_sparse_attention.trainers.shared.files import write_json
from tf_sparse_attention.trainers.shared.overrides import SETTINGS, SOURCE_SETTINGS, WINDOW_SETTINGS
from tf_sparse_attention.trainers.shared.resumable_sums import ResumableSums
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.settings import check_read


def with_overrides(
    config: ml_collections.ConfigDict, overrides: ml_collections.ConfigDict | None = None
) -> ml_collections.ConfigDict:
    """Returns a copy of a configuration with the overrides; another text replaces all settings of the source.

    Args:
        config: that of the run, which stays as it is.
        overrides: `overrides.overridable_settings()` with the settings to override. Default: None, none.

    Raises:
        ValueError: If the task of the run ignores one of them.
    """
    config = copy.deepcopy(config)
    if overrides is None:
        return config
    check_read(overrides, config.task, registry.class_of(config.task).settings)
    if overrides.data.tfds is not None or overrides.data.path is not None:
        defaults = base.get_config().data
        for name in set(SOURCE_SETTINGS) - {"data_dir"}:
            config.data[name] = defaults[name]
    for section in SETTINGS:
        with config[section].unlocked(), config[section].ignore_type():
            config[section].update(components.set_values(overrides[section]))
    return config


class EvaluationRun:
    """One evaluation of the model in a work folder: on which devices, where its scores go, and how it resumes.

    The scores of another text than that of the training have a file of their own, see `workdir.evaluation_path`.

    Args:
        folder: the work folder.
        split: name of the split.
        config: the `ml_collections.ConfigDict` of the evaluation, see `with_overrides`.
        source: the data of the split, which has a `name` and a `fingerprint`.
        variant: part of the name of the file, of a model that is evaluated otherwise than trained. Default: None.

    Attributes:
        path: the `pathlib.Path` of the scores, WORKDIR/evaluation-SPLIT.json for the run's own data.
        sizes: the settings of `config.data` about windows and batches, a dictionary.
        identity: plain data that identifies model, data, split, variant and sizes.
        devices: from `devices.choose_devices`.
        execution: the arguments of `keras.Model.compile` about execution.

    Raises:
        ValueError: If there is no such folder, or the devices do not suit `config.train`.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        split: str,
        config: ml_collections.ConfigDict,
        source: Any,
        variant: str | None = None,
    ) -> None:
        self.path = workdir.evaluation_path(folder, split, source, variant)
        self.sizes = {name: config.data[name] for name in WINDOW_SETTINGS}
        self.identity = [source.fingerprint, split, workdir.model_version(folder), variant, self.sizes]
        self.devices = choose_devices(config)
        self.execution = self.devices.execution(config.train.jit_compile, config.train.steps_per_execution)
        self._partial: list[ResumableSums] = []

    def resumable_sums(self, name: str = "", settings: Any = None) -> ResumableSums | None:
        """Returns the sums so far, which `write` removes; None with several processes.

        Those would all have to resume at the same batch, which separate files cannot guarantee.

        Args:
            name: of these sums, if an evaluation has several. Default: "".
            settings: plain data, what these sums depend on beside those of the evaluation. Default: None.
        """
        if not self.devices.is_single_process:
            return None
        suffix = ".".join(["", *([name] if name else []), "partial.json"])
        self._partial.append(ResumableSums(self.path.with_suffix(suffix), [*self.identity, settings]))
        return self._partial[-1]

    def write(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Returns the scores with "path", the file to which the chief process writes them; nothing is partial then."""
        scores = {**scores, "path": str(self.path)}
        if self.devices.is_chief:
            write_json(self.path, scores)
            for sums in self._partial:
                sums.remove()
        return scores
