"""Evaluate a trained model on every token of a split.

The metrics are printed and written to WORKDIR/evaluation-SPLIT.json. Text is compared with the
compression rates of gzip and xz; images are scored in bits per dimension. Data settings default
to the training settings. For other data, set --config.data.path=FOLDER or --config.data.tfds=NAME
(offline with --config.data.local_dir=FOLDER). Each window starts without context, so longer windows
have better scores. The backend is TensorFlow, or JAX with the environment variable
KERAS_BACKEND=jax.

Examples:
  tsa-evaluate --workdir=runs/demo --split=test
  tsa-evaluate --workdir=runs/demo --config.data.path=FOLDER_OF_TEXT
  tsa-evaluate --workdir=runs/demo --config.data.sequence_length=4096
"""

from typing import Any

import ml_collections
from absl import flags, logging

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import command_line

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory to evaluate.")
SPLIT = flags.DEFINE_string("split", "test", "Split of the data set.")
# Not `config_flags`, which shows a traceback for unknown names.
DEFINE: dict[type, Any] = {
    bool: flags.DEFINE_boolean,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    str: flags.DEFINE_string,
}
SETTINGS = base.overridable_settings()
CHANGES = {
    (section, name): DEFINE[SETTINGS[section].get_type(name)](
        f"config.{section}.{name}", None, "Default: the training setting; see trainers/configs/base.py."
    )
    for section, names in base.OVERRIDABLE.items()
    for name in names
}


def read_changes() -> ml_collections.ConfigDict:
    """Return `overridable_settings()` with the values of the flags."""
    changes = base.overridable_settings()
    for (section, name), flag in CHANGES.items():
        changes[section][name] = flag.value
    return changes


def main() -> None:
    """Run the command."""
    from tf_sparse_attention.trainers.shared import evaluation, remote_run

    with remote_run.reading(WORKDIR.value) as folder:  # type: ignore[arg-type]  # required
        result = evaluation.evaluate(folder, SPLIT.value, read_changes())
    print(evaluation.as_text(result), flush=True)
    logging.info("Written to %s.", result["path"])


def run() -> None:
    """Run the command."""
    flags.mark_flag_as_required("workdir")
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
