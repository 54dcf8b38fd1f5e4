"""What lies where in a work folder, and how the programs read and write it."""

import contextlib
import json
import os
import pathlib

import keras
import ml_collections

import tf_sparse_attention as tsa  # noqa: F401 - Keras finds the classes of a saved model by their registration.

CONFIG, MODEL, TOKENIZER, METRICS = "config.json", "model.keras", "tokenizer.json", "metrics.jsonl"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
TOKENIZERS = ("ByteTokenizer",)


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
            "`workdir` must be on a local disk, since checkpoints are renamed into place; mount the bucket. "
            f"Received: workdir={workdir}."
        )
    folder = pathlib.Path(workdir).expanduser()
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise ValueError(f"`workdir` must be an existing folder. Received: workdir={workdir}.")
    return folder


@contextlib.contextmanager
def replacing(path):
    """Gives a path beside `path` to write to, and renames it to `path` when the block ends without an error.

    Whoever reads `path`, also after a loss of power, finds the old content or the new one, never a part.
    """
    path = pathlib.Path(path)
    # The extension stays last: Keras decides by it what it writes.
    beside = path.with_name(f".{path.stem}.{os.getpid()}.incomplete{path.suffix}")
    try:
        yield beside
        _flush(beside)
        os.replace(beside, path)
        _flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path, content):
    """Writes plain data as JSON, all or nothing."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _read_json(workdir, name):
    path = open_workdir(workdir) / name
    if not path.exists():
        raise ValueError(f"`workdir` must hold {name}, which `trainers.train` writes. Received: workdir={workdir}.")
    return json.loads(path.read_text(encoding="utf-8"))


def save_config(workdir, config):
    """Writes the `ml_collections.ConfigDict` of a run."""
    write_json(open_workdir(workdir) / CONFIG, config.to_dict())


def load_config(workdir):
    """Returns the configuration of the run in a work folder, an `ml_collections.ConfigDict`.

    Raises:
        ValueError: If there is none.
    """
    return ml_collections.ConfigDict(_read_json(workdir, CONFIG))


def save_tokenizer(workdir, tokenizer):
    """Writes the class and the configuration of a tokenizer."""
    content = {"class": type(tokenizer).__name__, "config": tokenizer.get_config()}
    write_json(open_workdir(workdir) / TOKENIZER, content)


def load_tokenizer(workdir):
    """Returns the tokenizer of the run in a work folder.

    Raises:
        ValueError: If there is none, or its class is not one of the library's.
    """
    saved = _read_json(workdir, TOKENIZER)
    if saved["class"] not in TOKENIZERS:
        raise ValueError(f"`class` must be one of {', '.join(TOKENIZERS)}. Received: class={saved['class']}.")
    return getattr(tsa.data, saved["class"]).from_config(saved["config"])


def load_model(workdir):
    """Returns the trained model of a work folder, not compiled.

    Raises:
        ValueError: If there is none.
    """
    path = open_workdir(workdir) / MODEL
    if not path.exists():
        raise ValueError(f"`workdir` must hold {MODEL}, which `trainers.train` writes. Received: workdir={workdir}.")
    return keras.models.load_model(path, compile=False)
