"""Reading and writing of the files in a run directory."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import reprlib
import socket
import sys
from collections.abc import Iterator
from typing import IO, Any

import keras
import ml_collections
from absl import logging

from tf_sparse_attention.atomic_files import atomic_file, write_json
from tf_sparse_attention.remote_files import is_remote
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, loading
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints, as_numpy, state_variables
from tf_sparse_attention.trainers.tasks import registry

CONFIG, STATE, SOURCE = "config.json", "task.json", "source.json"
CHECKSUMS = "checksums.json"  # of the files of `save_json`
MODEL, METRICS = "model.keras", "metrics.jsonl"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
LOCK = "train.lock"
# Errors if another process has the lock. Other errors mean that the file system has no locks.
TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


def open_workdir(workdir: str | os.PathLike, create: bool = False) -> pathlib.Path:
    """Return a run directory on a local disk. `create`: whether to create it if it does not exist."""
    if is_remote(workdir):
        raise ValueError(
            "`workdir` must be on a local disk, since its files are written by renaming. `tsa-train` and commands that "
            f"read runs make a local copy of an address. Received: workdir={workdir}."
        )
    folder = pathlib.Path(workdir).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`workdir` must be a folder, not a file. Received: workdir={workdir}.")
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise ValueError(f"`workdir` must be an existing folder of a run of `tsa-train`. Received: workdir={workdir}.")
    return folder


def result_path(
    workdir: str | os.PathLike, file_name: str, split: str, source: Any, variant: str | None = None
) -> pathlib.Path:
    """Return the path of results for a split: `file_name`, such as "evaluation.json", with the split and so on.

    For other data than the training data, the name has the name of the source and a hash of its fingerprint, since
    names can be equal. `variant` is the name of a variant of the model.
    """
    is_training_data = source.fingerprint == load_source(workdir)["fingerprint"]
    source_part = None if is_training_data else f"{source.name.replace('/', '-')}-{_short_hash(source.fingerprint)}"
    file_part = _as_file_name(split)
    # "test[:1]" and "test[1:]" would have the same file name.
    split_part = split if file_part == split else f"{file_part}-{_short_hash(split)}"
    stem, suffix = file_name.split(".")
    name = "-".join(part for part in (stem, source_part, variant, split_part) if part is not None)
    return open_workdir(workdir) / f"{_as_file_name(name)}.{suffix}"


def _as_file_name(name):
    """Replace characters that are invalid in file names by underscores."""
    return re.sub("[^A-Za-z0-9_.-]+", "_", name)


def _short_hash(text):
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def save_config(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> None:
    """Write the `ml_collections.ConfigDict` of a run."""
    save_json(workdir, CONFIG, config.to_dict())


def load_config(workdir: str | os.PathLike) -> ml_collections.ConfigDict:
    """Read the configuration of a run. Raise a `ValueError` if the file is missing or damaged."""
    saved = read_json(workdir, CONFIG)
    for section, settings in base.get_config().to_dict().items():
        if isinstance(settings, dict) and not isinstance(saved.get(section), dict):
            raise ValueError(loading.error_message(open_workdir(workdir) / CONFIG, f"no section {section!r}"))
    with loading.convert_errors(open_workdir(workdir) / CONFIG):
        return ml_collections.ConfigDict(saved)


def save_source(workdir: str | os.PathLike, source: Any) -> None:
    """Write the name and the fingerprint of the training data. None: unknown data."""
    save_json(workdir, SOURCE, {name: getattr(source, name, None) for name in ("name", "fingerprint")})


def load_source(workdir: str | os.PathLike) -> dict[str, Any]:
    """Read the "name" and the "fingerprint" of the training data. Both are None for unknown data."""
    saved = read_json(workdir, SOURCE)
    with loading.convert_errors(open_workdir(workdir) / SOURCE):
        return {name: saved[name] for name in ("name", "fingerprint")}


def save_state(workdir: str | os.PathLike, state: dict[str, Any]) -> None:
    """Write the result of `Task.get_state`. Raise a `ValueError` unless it is a dictionary of plain data."""
    try:
        is_plain = isinstance(state, dict) and set(json.loads(json.dumps(state))) == set(state)
    except (TypeError, ValueError):  # such as an array
        is_plain = False
    if not is_plain:
        raise ValueError(
            "`Task.get_state` must return a dictionary of plain data by name, as in JSON. "
            f"Received: {reprlib.repr(state)}."
        )
    save_json(workdir, STATE, state)


def check_state(workdir: str | os.PathLike, state: dict[str, Any]) -> None:
    """Raise a `ValueError` if the saved state of a run differs from `state`, computed from the current data."""
    folder = open_workdir(workdir)
    if (folder / STATE).exists():
        saved, now = read_json(folder, STATE), json.loads(json.dumps(state))
        differ = {name: now.get(name) for name in {**saved, **now} if saved.get(name) != now.get(name)}
    else:
        differ = state if _checksums(folder).get(STATE) not in (None, _checksum(state)) else {}
    if differ:
        raise ValueError(
            f"`config.data` must match the {' and '.join(differ)} of the checkpoint in the run directory. For other "
            f"data, start a new run with another --workdir. Received: {reprlib.repr(differ)}."
        )


def save_model(workdir: str | os.PathLike, model: keras.Model, is_chief: bool = True) -> None:
    """Write a model without its optimizer, independent of the number of replicas.

    All processes must call this. Only the chief writes the file.
    """
    trained = {name: as_numpy(variable) for name, variable in state_variables(model).items()}
    if not is_chief:
        return
    copy = type(model).from_config(model.get_config())
    for name, variable in state_variables(copy).items():
        variable.assign(trained[name])
    with atomic_file(open_workdir(workdir) / MODEL) as temporary:
        copy.save(temporary)


def load_model(workdir: str | os.PathLike) -> keras.Model:
    """Load the trained model of a run, or otherwise the model of its newest checkpoint, without compiling it."""
    folder = open_workdir(workdir)
    if (folder / MODEL).exists():
        return loading.load_model("workdir", folder / MODEL)
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    newest = checkpoints.newest_metadata()
    if newest is None:
        raise ValueError(
            f"`workdir` must hold {MODEL} or a checkpoint, which `tsa-train` writes. Received: workdir={workdir}."
        )
    task = registry.load_task(folder)
    model = task.make_model()
    checkpoints.load(newest["step"], state_variables(components.with_memory(model, task.config.data.batch_size)))
    return model


def model_version(workdir: str | os.PathLike) -> str:
    """Return a string that identifies the model of `load_model`."""
    folder = open_workdir(workdir)
    if (folder / MODEL).exists():
        status = (folder / MODEL).stat()
        return f"{MODEL} {status.st_size} {status.st_mtime_ns}"
    return f"step {(Checkpoints(folder / CHECKPOINTS).newest_metadata() or {}).get('step')}"


def save_json(workdir: str | os.PathLike, name: str, content: Any) -> None:
    """Write plain data that a model depends on to the file `name`, with a checksum for `read_json`."""
    folder = open_workdir(workdir)
    sums, value = _checksums(folder), _checksum(content)
    if sums.pop(name, value) != value:  # after an interruption, the file must not have the checksum of other content
        write_json(folder / CHECKSUMS, sums)
    write_json(folder / name, content)
    write_json(folder / CHECKSUMS, {**sums, name: value})


def read_json(workdir: str | os.PathLike, name: str) -> dict[str, Any]:
    """Read the dictionary in the file `name` of a run directory."""
    folder = open_workdir(workdir)
    path = folder / name
    if not path.exists():
        raise ValueError(f"`workdir` must hold {name}, which `tsa-train` writes. Received: workdir={workdir}.")
    with loading.convert_errors(path):
        saved = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(saved, dict):
        raise ValueError(loading.error_message(path, f"a {type(saved).__name__}"))
    if name != CHECKSUMS and _checksums(folder).get(name) not in (None, _checksum(saved)):
        raise ValueError(loading.error_message(path, "content other than at the start of the run"))
    return saved


def _checksums(folder):
    """Read the checksums of a run directory by file name. Before the first `save_json`, there are none."""
    return read_json(folder, CHECKSUMS) if (folder / CHECKSUMS).exists() else {}


def _checksum(content):
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextlib.contextmanager
def hold_lock(folder: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a run directory. The lock is released when the process ends, even by a signal.

    The file `train.lock` remains and names the last process with the lock. If the file system has no locks, like some
    network drives, a warning is logged. If another process trains in the folder, a `ValueError` names it.
    """
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        try:
            _lock(file)
        except OSError as error:
            if error.errno in TAKEN:
                file.seek(0)
                raise ValueError(
                    "`workdir` must be a folder in which no other training runs. Wait for that training, or stop it. "
                    f"Received: workdir={folder}, in use by {file.read().strip() or 'another process'}."
                ) from error
            logging.warning("%s cannot be locked (%s). Do not start a second training in this folder.", folder, error)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _lock(file: IO[str]) -> None:
    """Lock an open file until it is closed, without waiting. Raise an `OSError` on failure."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(1 << 20)  # other processes cannot read locked bytes
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def import_model(config: ml_collections.ConfigDict, path: str | os.PathLike, folder: str | os.PathLike) -> keras.Model:
    """Create a run directory from a `.keras` file with a language model, and return the model.

    `config` has the text, its windows and the tokenizer of the model. A folder that contains a run raises a
    `ValueError`.
    """
    if (pathlib.Path(folder).expanduser() / CONFIG).exists():
        raise ValueError(f"`workdir` must not contain a run. Received: workdir={folder}.")
    tokenizer = components.make_tokenizer(config.data.tokenizer, config.data.vocabulary)
    model = loading.load_language_model("model", path, tokenizer.vocabulary_size)
    run_dir = open_workdir(folder, create=True)
    save_model(run_dir, model)
    save_state(run_dir, {"tokenizer": components.describe(tokenizer)})
    save_source(run_dir, None)
    save_config(run_dir, config)  # last, since it marks the folder as a run
    return model
