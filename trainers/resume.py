"""Going on with a run: only with the model, the optimizer and the text that its checkpoint is of."""

import json

from trainers.configs.base import with_new_names

# What may change between two calls. Where text and vocabulary lie does not matter, they are compared.
FREE_SETTINGS = (
    "backend",
    "generate",
    "train",
    "data.data_dir",
    "data.local_dir",
    "data.overlap",
    "data.path",
    "data.validation_split",
    "data.vocabulary",
)
# Of the free ones, what may not.
BOUND_SETTINGS = ("train.dtype",)


def describe(config, fingerprint):
    """Returns what a checkpoint has to say about its run: plain data.

    Args:
        config: The `ml_collections.ConfigDict` of the run.
        fingerprint: String that stands for the text, see `tsa.data.TextSource`.
    """
    # Through JSON, so that tuples and lists are one thing.
    return {"config": json.loads(json.dumps(config.to_dict())), "fingerprint": fingerprint}


def check_same(saved, now):
    """Raises if a run may not go on from a checkpoint.

    Args:
        saved, now: Of `describe`.

    Raises:
        ValueError: Naming the first setting that differs.
    """
    before, after = (_flat(with_new_names(description["config"])) for description in (saved, now))
    for name in sorted({*before, *after}):
        if not _is_free(name) and before.get(name) != after.get(name):
            raise ValueError(
                f"`config.{name}` must be that of the checkpoint in the work folder; begin a new one with another "
                f"--workdir. Received: {after.get(name)!r}, in the checkpoint {before.get(name)!r}."
            )
    if saved["fingerprint"] != now["fingerprint"]:
        raise ValueError(
            "`config.data` must lead to the text that the checkpoint was trained on; begin a new run with another "
            f"--workdir. Received: {now['fingerprint']}, in the checkpoint {saved['fingerprint']}."
        )


def _is_free(name):
    return name not in BOUND_SETTINGS and any(name == free or name.startswith(f"{free}.") for free in FREE_SETTINGS)


def _flat(settings, prefix=""):
    """Returns nested settings as one dictionary from "section.name" or "section.list[0].name" to values."""
    if isinstance(settings, dict):
        items = [(f"{prefix}.{name}" if prefix else name, value) for name, value in settings.items()]
    elif isinstance(settings, list):
        items = [(f"{prefix}[{index}]", value) for index, value in enumerate(settings)]
    else:
        return {prefix: settings}
    flat = {}
    for name, value in items:
        flat.update(_flat(value, name))
    return flat
