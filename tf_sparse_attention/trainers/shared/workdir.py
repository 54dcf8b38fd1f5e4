"""The files of a work folder, and functions that read and write them."""

import hashlib
import json
import os
import pathlib
import re
import reprlib
from typing import Any

import keras
import ml_collections

from tf_sparse_attention.atomic_files import atomic_file, write_json
from tf_sparse_attention.remote_files import is_remote
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, damage, loading
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints, state_variables
from tf_sparse_attention.trainers.shared.shards import as_numpy
from tf_sparse_attention.trainers.shared.tokenizers import from_description
from tf_sparse_attention.trainers.tasks import registry

CONFIG, STATE, SOURCE = "config.json", "task.json", "source.json"
CHECKSUMS = "checksums.json"  # of what `save_json` wrote
MODEL, METRICS = "model.keras", "metrics.jsonl"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"


def open_workdir(workdir: str | os.PathLike, create: bool = False) -> pathlib.Path:
    """Returns the work folder as a `pathlib.Path`.

    Args:
        workdir: the folder, on a local disk (or a bucket mounted as one).
        create: whether to make it if it does not exist.

    Raises:
        ValueError: If it is an address such as "gs://..." or a file, or does not exist and `create` is False.
    """
    if is_remote(workdir):
        raise ValueError(
            "`workdir` must be on a local disk here, since files in it are renamed into place; the programs that train "
            f"and read runs make a local copy of an address. Received: workdir={workdir}."
        )
    folder = pathlib.Path(workdir).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`workdir` must be a folder, not a file. Received: workdir={workdir}.")
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise ValueError(f"`workdir` must be an existing folder, which `tsa-train` makes. Received: workdir={workdir}.")
    return folder


def evaluation_path(workdir: str | os.PathLike, split: str, source: Any, variant: str | None = None) -> pathlib.Path:
    """Returns the file for the scores of a split.

    Args:
        workdir: the work folder.
        split: name of the split.
        source: the `TextSource`, or what else has a name and a fingerprint, of the split. The name of the file has its
            name if the run is trained on another one, and digits of its fingerprint, since names may be equal.
        variant: what else the name has, of a model that is evaluated in another way than it was trained. None: nothing.
    """
    return _result_path(workdir, "evaluation", split, source, variant, "json")


def generated_path(workdir: str | os.PathLike, split: str, source: Any) -> pathlib.Path:
    """Returns the file for what a model generates of a split, JSON lines; see `evaluation_path`."""
    return _result_path(workdir, "generated", split, source, None, "jsonl")


def _result_path(workdir, kind, split, source, variant, suffix):
    is_own = source.fingerprint == load_source(workdir)["fingerprint"]
    of_source = None if is_own else f"{source.name.replace('/', '-')}-{_digits(source.fingerprint)}"
    plain = _plain(split)
    of_split = split if plain == split else f"{plain}-{_digits(split)}"  # "test[:1]" and "test[1:]" look alike
    parts = kind, of_source, variant, of_split
    name = "-".join(part for part in parts if part is not None)
    return open_workdir(workdir) / f"{_plain(name)}.{suffix}"


def _plain(name):
    """Returns a name with underscores instead of characters that file names cannot have."""
    return re.sub("[^A-Za-z0-9_.-]+", "_", name)


def _digits(text):
    """Returns 8 digits that tell a text from others."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def save_config(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> None:
    """Writes the `ml_collections.ConfigDict` of a run."""
    save_json(workdir, CONFIG, config.to_dict())


def load_config(workdir: str | os.PathLike) -> ml_collections.ConfigDict:
    """Returns the configuration of the run in a work folder, an `ml_collections.ConfigDict`.

    Raises:
        ValueError: If there is none.
    """
    saved = read_json(workdir, CONFIG)
    for section, settings in base.get_config().to_dict().items():
        if isinstance(settings, dict) and not isinstance(saved.get(section), dict):
            raise ValueError(damage.broken(open_workdir(workdir) / CONFIG, f"no section {section!r}"))
    with damage.named(open_workdir(workdir) / CONFIG):
        return ml_collections.ConfigDict(saved)


def save_source(workdir: str | os.PathLike, source: Any) -> None:
    """Writes name and fingerprint of the `TextSource` of a run; None if it is unknown."""
    save_json(workdir, SOURCE, _identity(source))


def load_source(workdir: str | os.PathLike) -> dict[str, Any]:
    """Returns the text that the run in a work folder is trained on, as a dictionary: "name" and "fingerprint".

    Both are None if the text is unknown.

    Raises:
        ValueError: If there is no run.
    """
    saved = read_json(workdir, SOURCE)
    with damage.named(open_workdir(workdir) / SOURCE):
        return {name: saved[name] for name in ("name", "fingerprint")}


def _identity(source):
    known = source is not None
    return {"name": source.name if known else None, "fingerprint": source.fingerprint if known else None}


def save_state(workdir: str | os.PathLike, state: dict[str, Any]) -> None:
    """Writes what `Task.get_state` returns."""
    save_json(workdir, STATE, state)


def check_state(workdir: str | os.PathLike, state: dict[str, Any]) -> None:
    """Raises a `ValueError` if the run in a work folder has another state than that of the data now."""
    folder = open_workdir(workdir)
    if (folder / STATE).exists():
        saved, now = read_json(folder, STATE), json.loads(json.dumps(state))
        differ = {name: now.get(name) for name in {**saved, **now} if saved.get(name) != now.get(name)}
    else:
        differ = state if _checksums(folder).get(STATE) not in (None, _checksum(state)) else {}
    if differ:
        raise ValueError(
            f"`config.data` must lead to the {' and '.join(differ)} of the checkpoint in the work folder; start a new "
            f"run with another --workdir. Received: {reprlib.repr(differ)}."
        )


def load_tokenizer(workdir: str | os.PathLike) -> Any:
    """Returns the tokenizer of the run in a work folder.

    Raises:
        ValueError: If there is none, it was changed, or its class is not one of the library's.
    """
    state = read_json(workdir, STATE)
    with damage.named(open_workdir(workdir) / STATE):
        return from_description(state["tokenizer"])


def save_model(workdir: str | os.PathLike, model: keras.Model, is_chief: bool = True) -> None:
    """Writes a model without its optimizer, independent of the number of replicas. All processes of a run call this.

    Args:
        workdir: the work folder.
        model: the model.
        is_chief: whether this process writes the file. Default True.
    """
    trained = {name: as_numpy(variable) for name, variable in state_variables(model).items()}
    if not is_chief:
        return
    plain = type(model).from_config(model.get_config())
    for name, target in state_variables(plain).items():
        target.assign(trained[name])
    with atomic_file(open_workdir(workdir) / MODEL) as temporary:
        plain.save(temporary)


def load_model(workdir: str | os.PathLike) -> keras.Model:
    """Returns the model of a work folder, not compiled: the trained one, otherwise that of the newest checkpoint.

    Raises:
        ValueError: If there is neither.
    """
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
    """Returns a string that identifies the model that `load_model` returns."""
    folder = open_workdir(workdir)
    if (folder / MODEL).exists():
        status = (folder / MODEL).stat()
        return f"{MODEL} {status.st_size} {status.st_mtime_ns}"
    return f"step {(Checkpoints(folder / CHECKPOINTS).newest_metadata() or {}).get('step')}"


def save_json(workdir: str | os.PathLike, name: str, content: Any) -> None:
    """Writes what a model depends on in addition to its weights, plain data, with a checksum that `read_json` compares.

    Args:
        workdir: the work folder.
        name: of the file.
        content: a dictionary or a list.
    """
    folder = open_workdir(workdir)
    sums, value = _checksums(folder), _checksum(content)
    if sums.pop(name, value) != value:  # killed in between, the file has no checksum, never that of the old content
        write_json(folder / CHECKSUMS, sums)
    write_json(folder / name, content)
    write_json(folder / CHECKSUMS, {**sums, name: value})


def read_json(workdir: str | os.PathLike, name: str, kind: type = dict) -> Any:
    """Returns the content of a JSON file of a work folder.

    Args:
        workdir: the work folder.
        name: of the file.
        kind: what it holds, `dict` or `list`. Default: `dict`.

    Raises:
        ValueError: If there is no such file, it is broken, or it is not what `save_json` wrote.
    """
    folder = open_workdir(workdir)
    path = folder / name
    if not path.exists():
        raise ValueError(f"`workdir` must hold {name}, which `tsa-train` writes. Received: workdir={workdir}.")
    with damage.named(path):
        saved = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(saved, kind):
        raise ValueError(damage.broken(path, f"a {type(saved).__name__}"))
    if name != CHECKSUMS and _checksums(folder).get(name) not in (None, _checksum(saved)):
        raise ValueError(damage.broken(path, "another content than the run was started with"))
    return saved


def _checksums(folder):
    """Returns the checksums of a work folder by name of the file; none before the first file is saved."""
    return read_json(folder, CHECKSUMS) if (folder / CHECKSUMS).exists() else {}


def _checksum(content):
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
