"""Import a model from a file into a run directory.

`tsa-evaluate`, `tsa-generate` and `tsa-export` then accept it like a trained model. The configuration
specifies the evaluation text and the tokenizer of the model; the section `model` of the
configuration is ignored. To continue training a model, run `tsa-train` with --config.model.start_from=FILE.

Examples:
  tsa-import --model=bytes.keras --workdir=runs/bytes
  tsa-import --model=mine.keras --workdir=runs/mine --config.data.path=FOLDER_OF_TEXT
  tsa-import --model=pg19.keras --workdir=runs/pg19 --config=pg19 \\
      --config.data.tokenizer=subword --config.data.vocabulary=FILE
"""

from absl import flags, logging
from ml_collections import config_flags

from tf_sparse_attention.trainers.shared import command_line

CONFIG = config_flags.DEFINE_config_file(
    "config", command_line.BASE, "Configuration: file, or name in trainers/configs."
)
MODEL = flags.DEFINE_string("model", None, "Model file NAME.keras, for example from `tf_sparse_attention.convert`.")
WORKDIR = flags.DEFINE_string("workdir", None, "New run directory.")


def main() -> None:
    """Run the command."""
    from tf_sparse_attention.trainers.shared import workdir

    model = workdir.import_model(CONFIG.value, MODEL.value, WORKDIR.value)  # type: ignore[arg-type]  # required
    logging.info("Imported %s with %d weights into %s.", MODEL.value, model.count_params(), WORKDIR.value)


def run() -> None:
    """Run the command."""
    flags.mark_flags_as_required(["model", "workdir"])
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
