"""Exact, atomic checkpoints, the same files on TensorFlow and JAX.

A checkpoint is one file "step_000001000.npz": an uncompressed zip archive with the exact array of every variable
and "metadata.json". It is written to a temporary file, flushed to the disk and renamed; the archive has a checksum of
every array, so that a damaged file is detected before it is used.
"""

import json
import os
import pathlib
import re
import zipfile
from typing import Any

import keras
import ml_dtypes
import numpy as np
from absl import logging
from keras import ops

from trainers.shared import damage
from trainers.shared.files import atomic_file, remove_incomplete

FORMAT = 1
METADATA = "metadata.json"


def state_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None) -> dict[str, Any]:
    """Returns every variable that the next training steps depend on, by a name that is the same in every run.

    These are the weights, non-trainable state (centroids), the state of every seed generator, and the
    optimizer's variables with its step. Metrics are left out, as are the sums that replicas exchange
    within one step, and the number of updates that were left out.

    Args:
        model: `keras.Model`.
        optimizer: its optimizer, built. Default: None, only the model.

    Returns:
        Dictionary from "model/00007 PATH" or "optimizer/00007 PATH" to `keras.Variable`.
    """
    state = optimizer.variables if optimizer else []
    if hasattr(optimizer, "num_skipped"):
        state = state[:-1]  # the count is the last
    groups = {"model": model_variables(model), "optimizer": state}
    return {
        # Paths alone are not unique: layers without a given name may share an automatic one.
        f"{group}/{index:05d} {variable.path}": variable
        for group, variables in groups.items()
        for index, variable in enumerate(variables)
    }


def model_variables(model: keras.Model) -> list[Any]:
    """Returns the variables of a model with its seed generators, in an order independent of the number of replicas."""
    temporary_ids = {id(variable) for layer in model._flatten_layers() for variable in getattr(layer, "pending", ())}
    return [variable for variable in model.variables if id(variable) not in temporary_ids]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: their folder; created with the first one.
        keep: number of newest checkpoints to keep. Default 3.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"`config.train.keep_checkpoints` must be positive. Received: keep_checkpoints={keep}.")
        self.folder, self.keep = pathlib.Path(folder), keep

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints that there are, in order."""
        found = (re.fullmatch(r"step_(\d+)\.npz", path.name) for path in self.folder.glob("step_*.npz"))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> pathlib.Path:
        """Returns the path of the checkpoint of a step."""
        return self.folder / f"step_{step:09d}.npz"

    def save(self, step: int, variables: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Writes the checkpoint of a step, then removes all but the newest `keep`.

        Args:
            step: number of training steps done.
            variables: dictionary of variables, see `state_variables`.
            metadata: plain data about the run, returned by `newest_metadata`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_incomplete(self.folder)
        with atomic_file(self.path(step)) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            dtypes = {name: keras.backend.standardize_dtype(variable.dtype) for name, variable in variables.items()}
            content = {"format": FORMAT, "step": step, "dtypes": dtypes, **metadata}
            archive.writestr(METADATA, json.dumps(content))
            for name, variable in variables.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, _to_bits(variable), allow_pickle=False)
        self.remove_old(step)

    def remove_old(self, step: int) -> None:
        """Removes all checkpoints of steps up to this one but the newest `keep`."""
        # One of a later step is damaged, or the run would have gone on from it: it must not count among the newest.
        for old in [other for other in self.steps() if other <= step][: -self.keep]:
            self.path(old).unlink(missing_ok=True)

    def newest_metadata(self) -> dict[str, Any] | None:
        """Reads the metadata of the newest complete checkpoint; warns of damaged ones.

        Returns:
            Dictionary, the metadata it was written with, "step" among them; None if there is no checkpoint.

        Raises:
            ValueError: If there are checkpoints, all of them damaged.
        """
        for step in reversed(self.steps()):
            try:
                return _read_metadata(self.path(step))
            except (OSError, *damage.ERRORS) as error:
                logging.warning("%s is damaged and skipped: %s", self.path(step), damage.reason_of(error))
        if self.steps():
            raise ValueError(
                "`workdir` must have a checkpoint that can be read; remove the folder to start again. "
                f"Received: {len(self.steps())} damaged ones in {self.folder}."
            )
        return None

    def load(self, step: int, variables: dict[str, Any]) -> None:
        """Assigns the checkpoint of a step to variables.

        Args:
            step: a step that `newest_metadata` returned.
            variables: dictionary of variables, see `state_variables`; the checkpoint may have more.

        Raises:
            ValueError: If one is missing in the checkpoint or has another shape or dtype there.
        """
        with zipfile.ZipFile(self.path(step)) as archive:
            dtypes = json.loads(archive.read(METADATA))["dtypes"]
            by_index = {_index(name): name for name in dtypes}
            for name, variable in variables.items():
                saved = by_index.get(_index(name))
                value = None if saved is None else _read(archive, saved, dtypes[saved])
                if value is None or value.shape != tuple(variable.shape) or not _is_assignable(value, variable.dtype):
                    found = "nothing" if value is None else f"{saved} {value.shape} {value.dtype}"
                    raise ValueError(
                        f"`model` must be that of the checkpoint. Received: {name} {tuple(variable.shape)} "
                        f"{variable.dtype}, but {found} in {self.path(step)}."
                    )
                variable.assign(value.astype(ops.convert_to_numpy(variable).dtype, copy=False))


def _index(name):
    # Only the index counts: the path contains automatic names, which differ between runs.
    return name.split(" ")[0]


def _read_metadata(path):
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"the checksum of {bad!r} is wrong")
        metadata = json.loads(archive.read(METADATA))
    if metadata["format"] != FORMAT:
        raise ValueError(f"its format is {metadata['format']}, not {FORMAT}")
    return metadata


def _to_bits(variable):
    """Returns the value as an array that NumPy can store; bfloat16 and float8 as integers of the same size."""
    array = np.ascontiguousarray(ops.convert_to_numpy(variable)).reshape(variable.shape)
    return array if array.dtype.kind in "biuf" else array.view(f"uint{8 * array.dtype.itemsize}")


def _read(archive, name, dtype):
    with archive.open(f"{name}.npy") as file:
        bits = np.lib.format.read_array(file, allow_pickle=False)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return bits if bits.dtype == dtype else bits.view(dtype)


def _is_assignable(value, dtype):
    """Returns whether a value can be assigned; integer sizes may differ, as they do between TensorFlow and JAX."""
    dtype = keras.backend.standardize_dtype(dtype)
    return value.dtype.name == dtype or (value.dtype.kind in "iu" and dtype.removeprefix("u").startswith("int"))
