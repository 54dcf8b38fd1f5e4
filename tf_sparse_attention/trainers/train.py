"""Train a model on any task.

Flags override settings; trainers/configs/base.py lists all of them. The same command resumes from
the newest checkpoint in the run directory. Ctrl-C, SIGTERM or a closed terminal save a checkpoint
after the current step and end the run; a second Ctrl-C or SIGTERM kills the process. Progress is
shown as a bar on a terminal, otherwise as log lines. The backend is TensorFlow, or JAX with the
environment variable KERAS_BACKEND=jax.

Examples:
  tsa-train --config=demo --workdir=runs/demo
  tsa-train --config=books --workdir=runs/books --config.data.path=FOLDER_OF_TEXT
  tsa-train --config=demo --workdir=runs/fast --config.optimizer.learning_rate=3e-3
"""

import sys

from absl import flags, logging
from ml_collections import config_flags

from tf_sparse_attention.trainers.shared import command_line

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Configuration: a file, or a name in trainers/configs, such as demo."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory, or an address such as gs://bucket/run.")


def main() -> None:
    """Run the command."""
    from tf_sparse_attention.trainers.shared import training

    outcome = training.train(CONFIG.value, WORKDIR.value)  # type: ignore[arg-type]  # required
    if outcome.signal is None:
        logging.info("Trained to step %d; the model is in %s.", outcome.step, WORKDIR.value)
        return
    logging.warning(
        "Stopped by %s at step %d with a checkpoint; the same command resumes from there.",
        outcome.signal.name,
        outcome.step,
    )
    # Exit status that a shell reports after a signal.
    sys.exit(128 + outcome.signal)


def run() -> None:
    """Run the command."""
    flags.mark_flags_as_required(["config", "workdir"])
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
