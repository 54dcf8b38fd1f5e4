"""Trains a model of any task.

Any setting can be overridden; trainers/configs/base.py has them all. The same command resumes from
the newest checkpoint in the work folder. Ctrl-C, SIGTERM and a closed terminal end the run after
the current step with a checkpoint; a second Ctrl-C or SIGTERM kills the process. On a terminal a
bar shows progress, elsewhere lines do. The backend is TensorFlow unless the variable KERAS_BACKEND
says jax.

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
    "config", None, "The configuration: a file, or the name of one in trainers/configs, such as demo."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run, or its address, as gs://bucket/run.")


def main() -> None:
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
    # The exit status that a shell reports for a process ended by a signal.
    sys.exit(128 + outcome.signal)


def run() -> None:
    """Runs the program."""
    flags.mark_flags_as_required(["config", "workdir"])
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
