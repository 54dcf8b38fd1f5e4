"""What lies where in a work folder, and how the programs read and write it."""

import json
import pathlib
import re

import keras
import ml_collections
from keras import ops

from trainers import components
from trainers.checkpoints import Checkpoints, model_variables, state_variables
from trainers.configs import base
from trainers.files import replacing, write_json
from trainers.tokenizers import KINDS

CONFIG, TOKENIZER, SOURCE = "config.json", "tokenizer.json", "source.json"
MODEL, METRICS = "model.keras", "metrics.jsonl"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"


def open_workdir(workdir, create=False):
    """Returns the work folder as a `pathlib.Path`.

    Args:
        workdir: The folder, on a local disk (or a bucket mounted as one).
        create: Whether to make it if it does not exist.

    Raises:
        ValueError: If it is an address such as "gs://...", or does not exist and `create` is False.
    """
    if "://" in str(workdir):
        raise ValueError(
            "`workdir` must be on a local disk, since files in it are renamed into place; mount the bucket. "
            f"Received: workdir={workdir}."
        )
    folder = pathlib.Path(workdir).expanduser()
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise ValueError(f"`workdir` must be an existing folder. Received: workdir={workdir}.")
    return folder


def evaluation_path(workdir, split, text=None):
    """Returns where the figures of a split are written; with the name of the text where it is not that of the run."""
    name = "-".join(["evaluation", *([text] if text else []), split])
    return open_workdir(workdir) / f"{re.sub('[^A-Za-z0-9_.-]+', '_', name)}.json"


def save_config(workdir, config):
    """Writes the `ml_collections.ConfigDict` of a run."""
    write_json(open_workdir(workdir) / CONFIG, config.to_dict())


def load_config(workdir):
    """Returns the configuration of the run in a work folder, an `ml_collections.ConfigDict`.

    Raises:
        ValueError: If there is none.
    """
    saved = _read_json(workdir, CONFIG)
    for section, settings in base.get_config().to_dict().items():
        if isinstance(settings, dict):  # a run of an earlier version lacks what came later
            saved[section] = {**settings, **saved[section]}
    return ml_collections.ConfigDict(base.with_new_names(saved))


def save_source(workdir, source):
    """Writes which text a run is trained on: name and fingerprint of a `TextSource`; None: an unknown one."""
    write_json(open_workdir(workdir) / SOURCE, _identity(source))


def load_source(workdir):
    """Returns which text the run in a work folder is trained on, as a dictionary: "name" and "fingerprint".

    Both are None where it is not known. The text need not be there any more, unless the folder is from before this was
    written down.

    Raises:
        ValueError: If there is no run, or nothing is written down and the text is not there.
    """
    if not (open_workdir(workdir) / SOURCE).exists():
        return _identity(components.make_source(load_config(workdir)))
    return _read_json(workdir, SOURCE)


def _identity(source):
    known = source is not None
    return {"name": source.name if known else None, "fingerprint": source.fingerprint if known else None}


def save_tokenizer(workdir, tokenizer):
    """Writes the class and the configuration of a tokenizer."""
    write_json(open_workdir(workdir) / TOKENIZER, _description(tokenizer))


def load_tokenizer(workdir):
    """Returns the tokenizer of the run in a work folder.

    Raises:
        ValueError: If there is none, or its class is not one of the library's.
    """
    saved = _read_json(workdir, TOKENIZER)
    classes = {kind.__name__: kind for kind in KINDS.values()}
    if saved["class"] not in classes:
        raise ValueError(f"`class` must be one of {', '.join(classes)}. Received: class={saved['class']}.")
    return classes[saved["class"]].from_config(saved["config"])


def check_tokenizer(workdir, tokenizer):
    """Raises a `ValueError` if the run in a work folder has another tokenizer, or other pieces of it."""
    if (open_workdir(workdir) / TOKENIZER).exists() and _read_json(workdir, TOKENIZER) != _description(tokenizer):
        raise ValueError(
            "`config.data.vocabulary` must be that of the checkpoint in the work folder; begin a new one with another "
            "--workdir. Received: other pieces."
        )


def _description(tokenizer):
    return {"class": type(tokenizer).__name__, "config": tokenizer.get_config()}


def save_model(workdir, model):
    """Writes a model without its optimizer, for any number of replicas."""
    plain = type(model).from_config(model.get_config())
    for target, source in zip(model_variables(plain), model_variables(model), strict=True):
        target.assign(ops.convert_to_numpy(source))
    with replacing(open_workdir(workdir) / MODEL) as beside:
        plain.save(beside)


def load_model(workdir):
    """Returns the model of a work folder, not compiled: the trained one, or else that of the newest checkpoint.

    Raises:
        ValueError: If there is neither.
    """
    folder = open_workdir(workdir)
    if (folder / MODEL).exists():
        return keras.models.load_model(folder / MODEL, compile=False)
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    newest = checkpoints.newest_metadata()
    if newest is None:
        raise ValueError(
            f"`workdir` must hold {MODEL} or a checkpoint, which `trainers.train` writes. Received: workdir={workdir}."
        )
    config = load_config(folder)
    model = components.make_model(config, load_tokenizer(folder).vocabulary_size)
    checkpoints.load(newest["step"], state_variables(components.make_trained(config, model)))
    return model


def model_version(workdir):
    """Returns text that differs when `load_model` would give another model."""
    folder = open_workdir(workdir)
    if (folder / MODEL).exists():
        status = (folder / MODEL).stat()
        return f"{MODEL} {status.st_size} {status.st_mtime_ns}"
    return f"step {(Checkpoints(folder / CHECKPOINTS).newest_metadata() or {}).get('step')}"


def _read_json(workdir, name):
    path = open_workdir(workdir) / name
    if not path.exists():
        raise ValueError(f"`workdir` must hold {name}, which `trainers.train` writes. Received: workdir={workdir}.")
    return json.loads(path.read_text(encoding="utf-8"))
