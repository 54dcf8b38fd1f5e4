"""Makes a work folder from a given model.

The other programs then evaluate it, sample from it and export it as if they had trained it. The
configuration names the text to evaluate on, and the tokenizer, which has to be the model's own; its
section `model` is not read. To continue training such a model pass its file to `tsa-train` as
--config.model.start_from=FILE.

Examples:
  tsa-import --model=bytes.keras --workdir=runs/bytes
  tsa-import --model=mine.keras --workdir=runs/mine --config.data.path=FOLDER_OF_TEXT
  tsa-import --model=pg19.keras --workdir=runs/pg19 --config=pg19 \\
      --config.data.tokenizer=subword --config.data.vocabulary=FILE
"""

from absl import flags, logging
from ml_collections import config_flags

from tf_sparse_attention.trainers.shared import command_line

CONFIG = config_flags.DEFINE_config_file("config", command_line.BASE, "File with the configuration.")
MODEL = flags.DEFINE_string("model", None, "The model, NAME.keras, as `tf_sparse_attention.convert` writes it.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the new run.")


def main() -> None:
    from tf_sparse_attention.trainers.shared import model_import

    model = model_import.import_model(CONFIG.value, MODEL.value, WORKDIR.value)  # type: ignore[arg-type]  # required
    logging.info("%d weights of %s are in %s.", model.count_params(), MODEL.value, WORKDIR.value)


def run() -> None:
    """Runs the program."""
    flags.mark_flags_as_required(["model", "workdir"])
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
