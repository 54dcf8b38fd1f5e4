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

from absl import flags, logging

from tf_sparse_attention.trainers.shared import command_line, overrides

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory to evaluate.")
SPLIT = flags.DEFINE_string("split", "test", "Split of the data set.")
CHANGES = overrides.define_flags()
flags.adopt_module_key_flags(overrides)  # lists them in --help


def main() -> None:
    from tf_sparse_attention.trainers.shared import evaluation, remote_run

    with remote_run.reading(WORKDIR.value) as folder:  # type: ignore[arg-type]  # required
        result = evaluation.evaluate(folder, SPLIT.value, CHANGES())
    print(evaluation.as_text(result), flush=True)
    logging.info("Written to %s.", result["path"])


def run() -> None:
    """Run the command."""
    flags.mark_flag_as_required("workdir")
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
