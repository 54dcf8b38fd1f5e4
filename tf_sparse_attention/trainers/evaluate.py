"""Scores a trained model on every token of a split.

The metrics are printed and written to WORKDIR/evaluation-SPLIT.json, those of text with the
compression rates of gzip and xz on the same bytes, those of images as bits per dimension. The text,
the windows and the batches are those of the training unless settings say otherwise: another text by
--config.data.tfds=NAME (offline with --config.data.local_dir=FOLDER) or --config.data.path=FOLDER;
each window begins without context, so longer ones score better. The backend is TensorFlow unless
the variable KERAS_BACKEND says jax.

Examples:
  tsa-evaluate --workdir=runs/demo --split=test
  tsa-evaluate --workdir=runs/demo --config.data.path=FOLDER_OF_TEXT
  tsa-evaluate --workdir=runs/demo --config.data.sequence_length=4096
"""

from absl import flags, logging

from tf_sparse_attention.trainers.shared import command_line, overrides

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to evaluate.")
SPLIT = flags.DEFINE_string("split", "test", "Split of the data set.")
CHANGES = overrides.define_flags()
flags.adopt_module_key_flags(overrides)  # so that --help lists them


def main() -> None:
    from tf_sparse_attention.trainers.shared import evaluation, remote_run

    with remote_run.reading(WORKDIR.value) as folder:  # type: ignore[arg-type]  # required
        result = evaluation.evaluate(folder, SPLIT.value, CHANGES())
    print(evaluation.as_text(result), flush=True)
    logging.info("Written to %s.", result["path"])


def run() -> None:
    """Runs the program."""
    flags.mark_flag_as_required("workdir")
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
