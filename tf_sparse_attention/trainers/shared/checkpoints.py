"""Exact, atomic checkpoints with the same file format on TensorFlow and JAX.

A checkpoint is one file "step_000001000.npz": an uncompressed zip archive with the exact array of every variable,
"metadata.json", and in remote runs the other files of the run. The file is written under a temporary name, flushed to
the disk and renamed. The archive has a checksum of every member, so damaged files are detected before use.

If a model is split over several processes, each process first writes its shards to "step_000001000.part_1.npz". The
checkpoint is written last, with the checksums of these files, so that an incomplete save is invalid as a whole.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import keras
import ml_dtypes
import numpy as np
from absl import logging
from keras import ops

from tf_sparse_attention.atomic_files import atomic_file, remove_stale
from tf_sparse_attention.checks import check_count
from tf_sparse_attention.trainers.shared import loading
from tf_sparse_attention.trainers.shared.devices import OneDevice

FORMAT = 2
METADATA = "metadata.json"
FILES = "files/"  # prefix of the run's files in the archive


def is_split(variable: Any) -> bool:
    """Return whether this process has only a part of a variable."""
    if keras.backend.backend() != "jax":
        return False
    value = ops.convert_to_tensor(variable)
    return not (value.is_fully_addressable or value.is_fully_replicated)


def as_numpy(variable: Any) -> np.ndarray:
    """Return the whole value of a variable. If it is split, all processes must call this function."""
    if not is_split(variable):
        return ops.convert_to_numpy(variable)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(ops.convert_to_tensor(variable), tiled=True))


def state_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None) -> dict[str, Any]:
    """Return all variables that later training steps depend on, by names that are the same in every process.

    The variables are weights, non-trainable state (centroids), states of seed generators, and the variables of a built
    optimizer with its step. Metrics, sums that replicas exchange within a step, and the number of skipped updates are
    not included.

    The name is "model/PATH", the path of layer names below the model, or "optimizer/PATH/SLOT". Numbers in automatic
    names ("dense_7") depend on earlier layers of the process, so they are replaced by numbers from 0 in each parent, in
    the order of creation.
    """
    weights = _model_names(model)
    state = optimizer.variables if optimizer else []
    if hasattr(optimizer, "num_skipped"):
        state = state[:-1]  # without `num_skipped`, the last variable
    named = {f"model/{name}": variable for name, variable in weights.items()}
    return named | {f"optimizer/{name}": variable for name, variable in _optimizer_names(state, weights).items()}


def model_variables(model: keras.Model) -> list[Any]:
    """Return the variables of a model with its seed generators, in an order independent of the number of replicas."""
    temporary_ids = {id(variable) for layer in model._flatten_layers() for variable in getattr(layer, "pending", ())}
    return [variable for variable in model.variables if id(variable) not in temporary_ids]


def _model_names(model):
    """Return the variables of a model, by path."""
    names: dict[int, str] = {}

    def visit(layer, path):
        children = layer._flatten_layers(include_self=False, recursive=False)
        below = {id(variable) for child in children for variable in child.variables}
        own = [variable for variable in layer.variables if id(variable) not in below]
        own_names = _stable_names([variable.name for variable in own], ["variable"] * len(own))
        for variable, name in zip(own, own_names, strict=True):
            names.setdefault(id(variable), "/".join([*path, name]))
        kinds = [_snake_case(type(child).__name__) for child in children]
        for child, name in zip(children, _stable_names([child.name for child in children], kinds), strict=True):
            visit(child, [*path, name])

    visit(model, [])
    return {names[id(variable)]: variable for variable in model_variables(model)}


def _stable_names(names, automatic):
    """Return distinct names of siblings that do not depend on earlier objects of the process.

    `automatic` has Keras's automatic name of the class of each sibling, without a number. Automatic names get new
    numbers: their ranks among siblings of the same class.
    """
    matches = [re.fullmatch(rf"{kind}(?:_(\d+))?", name) for name, kind in zip(names, automatic, strict=True)]
    numbers = [None if match is None else int(match[1] or 0) for match in matches]
    renamed = []
    for name, kind, number in zip(names, automatic, numbers, strict=True):
        if number is not None:
            siblings = zip(automatic, numbers, strict=True)
            rank = sorted({other for sibling, other in siblings if sibling == kind and other is not None}).index(number)
            name = f"{kind}_{rank}" if rank else kind
        renamed.append(name)
    return _distinct(renamed)


def _distinct(names):
    """Return names with numbers after repeated ones: "kernel", "kernel~1"."""
    counts: collections.Counter[str] = collections.Counter()
    distinct = []
    for name in names:
        distinct.append(f"{name}~{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return distinct


def _snake_case(name):
    """Return Keras's automatic name of a class."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _optimizer_names(state, weights):
    """Return the variables of an optimizer by WEIGHT_PATH/SLOT, and variables without a weight by their names.

    Keras names an optimizer variable by the path of its weight, joined by "_", and the slot.
    """
    by_prefix = collections.defaultdict(list)
    for name, weight in weights.items():
        by_prefix[weight.path.replace("/", "_")].append(name)
    names = []
    counts: collections.Counter[str] = collections.Counter()
    for variable in state:
        name, parts = variable.name, variable.name.split("_")
        cut = next((cut for cut in range(len(parts) - 1, 0, -1) if "_".join(parts[:cut]) in by_prefix), None)
        if cut is not None:
            owners = by_prefix["_".join(parts[:cut])]
            # Layers with automatic names can share a path. Their slots are in the order of the weights.
            name = f"{owners[counts[name] % len(owners)]}/{'_'.join(parts[cut:])}"
        counts[variable.name] += 1
        names.append(name)
    return dict(zip(_distinct(names), state, strict=True))


class Checkpoints:
    """The checkpoints of one run in a folder, which the first `save` creates. The newest `keep` are kept."""

    def __init__(self, folder: str | os.PathLike, keep: int = 3) -> None:
        check_count("config.train.keep_checkpoints", keep)
        self.folder, self.keep = pathlib.Path(folder), keep

    def steps(self) -> list[int]:
        steps = (parse_step(path.name) for path in self.folder.glob("step_*.npz"))
        return sorted(step for step in steps if step is not None)

    def path(self, step: int) -> pathlib.Path:
        return self.folder / f"step_{step:09d}.npz"

    def save(
        self,
        step: int,
        variables: dict[str, Any],
        metadata: dict[str, Any],
        files: Sequence[pathlib.Path] = (),
        devices: OneDevice | None = None,
    ) -> None:
        """Write the checkpoint of a step, then delete all except the newest `keep`. All processes must call this.

        `variables` are from `state_variables`. `metadata`, plain data, is returned by `newest_metadata`. `files` are
        stored too.
        """
        devices = OneDevice() if devices is None else devices
        split = {name: variable for name, variable in variables.items() if is_split(variable)}
        if not (split or devices.is_chief):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_stale(self.folder)
        if split:
            self._write_part(step, split, devices.process_index)
            devices.wait_for_others(f"checkpoint of step {step}")
        if not devices.is_chief:
            return
        parts = {}
        if split:
            paths = [self._part(step, number) for number in range(devices.num_processes)]
            parts = {path.name: _checksum(path) for path in paths}
        with atomic_file(self.path(step)) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            dtypes = {name: keras.backend.standardize_dtype(variable.dtype) for name, variable in variables.items()}
            content = {"format": FORMAT, "step": step, "dtypes": dtypes, "parts": parts, **metadata}
            archive.writestr(METADATA, json.dumps(content))
            for name, variable in variables.items():
                if name not in split:
                    value = ops.convert_to_numpy(variable)
                    _write(archive, name, value.reshape(variable.shape))
            for path in files:
                archive.write(path, FILES + path.name)
        self._remove_old(step)

    def _part(self, step, number):
        return self.path(step).with_suffix(f".part_{number}.npz")

    def _write_part(self, step, variables, number):
        """Write the shards of split variables in this process. Each shard is in one process only."""
        with atomic_file(self._part(step, number)) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            bounds: dict[str, list[Any]] = {}  # [start, stop] for each axis
            for name, variable in variables.items():
                value = ops.convert_to_tensor(variable)
                shards = [shard for shard in value.addressable_shards if shard.replica_id == 0]
                bounds[name] = [
                    [list(index.indices(size)[:2]) for index, size in zip(shard.index, value.shape, strict=True)]
                    for shard in shards
                ]
                for index, shard in enumerate(shards):
                    _write(archive, f"{name}/{index}", np.asarray(shard.data))
            shapes = {name: list(variable.shape) for name, variable in variables.items()}
            archive.writestr(METADATA, json.dumps({"shapes": shapes, "bounds": bounds}))

    def _remove_old(self, step):
        """Delete the checkpoints of steps up to this one, except the newest `keep`."""
        # Later checkpoints do not count: they are damaged, since the run did not resume from them.
        for old in [other for other in self.steps() if other <= step][: -self.keep]:
            self.path(old).unlink(missing_ok=True)
        kept = tuple(f"{self.path(other).stem}.part_" for other in self.steps())
        for part in self.folder.glob("step_*.part_*.npz"):
            if not part.name.startswith(kept):
                part.unlink(missing_ok=True)

    def newest_metadata(self) -> dict[str, Any] | None:
        """Return the metadata of the newest intact checkpoint with its "step", or None if no checkpoint exists."""
        steps = self.steps()
        for step in reversed(steps):
            metadata = self.read_metadata(step)
            if metadata is not None:
                return metadata
        if self.steps() != steps:  # a running training has replaced them
            return self.newest_metadata()
        if steps:
            raise damaged_error(len(steps), self.folder)
        return None

    def read_metadata(self, step: int) -> dict[str, Any] | None:
        """Return the metadata of an intact checkpoint. Log a warning and return None for a damaged checkpoint."""
        try:
            metadata = _read_whole(self.path(step))
            if metadata["format"] != FORMAT:
                raise ValueError(f"its format is {metadata['format']}, not {FORMAT}")
            for name, checksum in metadata.get("parts", {}).items():
                if _checksum(self.folder / name) != checksum:
                    raise ValueError(f"{name!r} belongs to another save")
                _read_whole(self.folder / name)
        except (OSError, *loading.DAMAGE_ERRORS) as error:
            logging.warning("%s is damaged and skipped: %s", self.path(step), loading.short_reason(error))
            return None
        return metadata

    def extract_files(self, step: int, folder: pathlib.Path) -> None:
        with zipfile.ZipFile(self.path(step)) as archive:
            for name in archive.namelist():
                if name.startswith(FILES):
                    (folder / os.path.basename(name)).write_bytes(archive.read(name))

    def load(self, step: int, variables: dict[str, Any]) -> None:
        """Assign the checkpoint of a step to variables, see `state_variables`. Optimizer variables can be omitted."""
        with contextlib.ExitStack() as opened:
            archive = opened.enter_context(zipfile.ZipFile(self.path(step)))
            metadata = json.loads(archive.read(METADATA))
            dtypes = metadata["dtypes"]
            files = [opened.enter_context(zipfile.ZipFile(self.folder / name)) for name in metadata.get("parts", ())]
            parts = [(file, json.loads(file.read(METADATA))) for file in files]
            groups = {name.partition("/")[0] for name in variables}
            unused = [name for name in dtypes if name not in variables and name.partition("/")[0] in groups]
            missing = [name for name in variables if name not in dtypes]
            if missing or unused:
                ours, saved = (", ".join(names[:3]) or "nothing" for names in (missing, unused))
                raise ValueError(
                    f"`model` must match the checkpoint {self.path(step)}. Only in the model: {ours} "
                    f"({len(missing)} in all). Only in the checkpoint: {saved} ({len(unused)} in all)."
                )
            for name, variable in variables.items():
                value = _read(archive, parts, name, dtypes[name])
                if value.shape != tuple(variable.shape) or not _is_assignable(value, variable.dtype):
                    raise ValueError(
                        f"`model` must match the checkpoint. Received: {name} {tuple(variable.shape)} "
                        f"{variable.dtype}, but {value.shape} {value.dtype} in {self.path(step)}."
                    )
                variable.assign(value.astype(_numpy_dtype(variable.dtype), copy=False))


def damaged_error(count: int, folder: Any) -> ValueError:
    """Create the error for a run without an intact checkpoint of this format."""
    return ValueError(
        f"`workdir` must have a readable checkpoint of format {FORMAT}: finish the run with the version that started "
        f"it, or remove the directory to start again. Received: {count} damaged checkpoints in {folder}."
    )


def parse_step(name: str) -> int | None:
    """Return the step in the file name of a checkpoint, or None for other files."""
    match = re.fullmatch(r"step_(\d+)\.npz", name)
    return int(match[1]) if match else None


def _read_whole(path):
    """Verify the checksums of all members of an archive, and return its metadata."""
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"the checksum of {bad!r} in {path.name!r} is wrong")
        return json.loads(archive.read(METADATA))


def _checksum(path):
    """Return a checksum of the names, sizes and checksums of an archive's members."""
    with zipfile.ZipFile(path) as archive:
        listed = [(member.filename, member.file_size, member.CRC) for member in archive.infolist()]
    return zlib.crc32(json.dumps(listed).encode())


def _write(archive, name, array):
    """Write an array to an archive. bfloat16 and float8 become integers of the same size, since NumPy lacks them."""
    shape, array = array.shape, np.ascontiguousarray(array)
    bits = array if array.dtype.kind in "biuf" else array.view(f"uint{8 * array.dtype.itemsize}")
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, bits.reshape(shape), allow_pickle=False)


def _read(archive, parts, name, dtype):
    """Read an array of a checkpoint, or assemble it from `parts`, (archive of shards, its metadata) per process."""
    if f"{name}.npy" in archive.NameToInfo:
        return _read_member(archive, name, dtype)
    whole = None
    for part, saved in parts:
        for index, bounds in enumerate(saved["bounds"].get(name, ())):
            if whole is None:
                whole = np.empty(saved["shapes"][name], _numpy_dtype(dtype))
            whole[tuple(slice(*pair) for pair in bounds)] = _read_member(part, f"{name}/{index}", dtype)
    return whole


def _read_member(archive, name, dtype):
    with archive.open(f"{name}.npy") as file:
        bits = np.lib.format.read_array(file, allow_pickle=False)
    dtype = _numpy_dtype(dtype)
    return bits if bits.dtype == dtype else bits.view(dtype)


def _numpy_dtype(name):
    name = keras.backend.standardize_dtype(name)
    return np.dtype(getattr(ml_dtypes, name, name))


def _is_assignable(value, dtype):
    """Return whether a value can be assigned. Integer sizes may differ, as between TensorFlow and JAX."""
    dtype = keras.backend.standardize_dtype(dtype)
    return value.dtype.name == dtype or (value.dtype.kind in "iu" and dtype.removeprefix("u").startswith("int"))
