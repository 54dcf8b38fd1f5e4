"""Learn a subword vocabulary from text.

The file has the format of tensor2tensor, for --config.data.tokenizer=subword
--config.data.vocabulary=FILE. The text is the training split of a configuration. For the tasks translate
and answer, sources and targets are both used. The tokenizer settings of the configuration are ignored.

Examples:
  tsa-vocabulary --size=8000 --output=FILE --config.data.path=FOLDER_OF_TEXT
  tsa-vocabulary --size=2000 --output=runs/demo.subwords --config=demo
  tsa-vocabulary --output=FILE --config.data.tfds=pg19 --max_documents=1000
"""

import itertools

from absl import flags, logging
from ml_collections import config_flags

from tf_sparse_attention.trainers.shared import command_line

CONFIG = config_flags.DEFINE_config_file("config", command_line.BASE, "Configuration with the text.")
OUTPUT = flags.DEFINE_string("output", None, "Vocabulary file to write.")
SIZE = flags.DEFINE_integer("size", 32_768, "Target number of subwords.", lower_bound=2)
MAX_DOCUMENTS = flags.DEFINE_integer("max_documents", None, "Maximum number of documents to read.", lower_bound=1)


def main() -> None:
    """Run the command."""
    import tf_sparse_attention as tsa
    from tf_sparse_attention.trainers.tasks import registry

    source = registry.text_source(CONFIG.value)
    documents = source.documents(CONFIG.value.data.train_split)
    tokenizer = tsa.data.train_subwords(itertools.islice(documents, MAX_DOCUMENTS.value), SIZE.value)
    tokenizer.to_file(OUTPUT.value)  # type: ignore[arg-type]  # required
    logging.info("%d subwords of %s; written to %s.", tokenizer.vocabulary_size, source.name, OUTPUT.value)


def run() -> None:
    """Run the command."""
    flags.mark_flag_as_required("output")
    command_line.run(__name__, main)


if __name__ == "__main__":
    run()
