"""Checks that a resumed run has the model, the optimizer and the training data of its checkpoint."""

import json
from typing import Any

import ml_collections
from absl import logging

# Settings that can change when a run is resumed. Paths can change, since the contents are compared.
CHANGEABLE_SETTINGS = (
    "generate",
    "train",
    "data.data_dir",
    "data.local_dir",
    "data.overlap",
    "data.path",
    "data.validation_split",
    "data.vocabulary",
)
# Settings that cannot change, although their section can.
FIXED_SETTINGS = ("train.dtype",)


def describe(config: ml_collections.ConfigDict, fingerprint: str) -> dict[str, Any]:
    """Return the description of a run for its checkpoints, as plain data.

    Args:
        config: `ml_collections.ConfigDict` of the run.
        fingerprint: string that identifies the training data, for example the attribute of a `tsa.data.TextSource`.
    """
    # Through JSON, so that tuples and lists compare as equal.
    return {"config": json.loads(json.dumps(config.to_dict())), "fingerprint": fingerprint}


def check_compatible(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a `ValueError` with the first different setting if a run cannot be resumed from a checkpoint.

    Args:
        saved, now: descriptions of the checkpoint and of the run, from `describe`.
    """
    before, after = flat_settings(saved["config"]), flat_settings(now["config"])
    for name in sorted({*before, *after}):
        if not _is_changeable(name) and before.get(name) != after.get(name):
            raise ValueError(
                f"`config.{name}` must be the same as in the checkpoint. To change it, start a new run with another "
                f"--workdir. Received: {after.get(name)!r}, in the checkpoint {before.get(name)!r}."
            )
    steps = [settings.get("train.num_steps") for settings in (after, before)]
    is_default = after.get("optimizer.schedule") == "cosine" and after.get("optimizer.decay_steps") is None
    if is_default and steps[0] != steps[1]:
        logging.warning(
            "The cosine schedule ends at config.train.num_steps, which is %s instead of %s. The learning rate changes "
            "abruptly. Set config.optimizer.decay_steps in runs that may become longer.",
            *steps,
        )
    if saved["fingerprint"] != now["fingerprint"]:
        raise ValueError(
            "`config.data` must match the training data of the checkpoint. For other data, start a new run with "
            f"another --workdir. Received: {now['fingerprint']}, in the checkpoint {saved['fingerprint']}."
        )


def _is_changeable(name):
    return name not in FIXED_SETTINGS and any(
        name == changeable or name.startswith(f"{changeable}.") for changeable in CHANGEABLE_SETTINGS
    )


def flat_settings(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to one dictionary with keys such as "section.name" and "section.list[0].name"."""
    if isinstance(settings, dict):
        items = [(f"{prefix}.{name}" if prefix else name, value) for name, value in settings.items()]
    elif isinstance(settings, (list, tuple)):
        items = [(f"{prefix}[{index}]", value) for index, value in enumerate(settings)]
    else:
        return {prefix: settings}
    flat = {}
    for name, value in items:
        flat.update(flat_settings(value, name))
    return flat
