"""Finds the subwords of a text: python -m trainers.vocabulary --size=8000 --output=FILE --config.data.path=FOLDER

FILE is a vocabulary of tensor2tensor's kind, for --config.data.tokenizer=subword --config.data.vocabulary=FILE. The
text is that of a configuration (--config=trainers/configs/books.py), with changes by flags such as
--config.data.tfds=pg19; its training split is read, of pairs both texts.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from absl import flags, logging
from ml_collections import config_flags

from trainers.shared import config_files, console

CONFIG = config_flags.DEFINE_config_file("config", config_files.BASE, "File with the configuration whose text is read.")
OUTPUT = flags.DEFINE_string("output", None, "The vocabulary file to write.")
SIZE = flags.DEFINE_integer("size", 32_768, "Target number of subwords.", lower_bound=2)
MAX_DOCUMENTS = flags.DEFINE_integer("max_documents", None, "Maximum number of documents to read.", lower_bound=1)


def training_texts(config: Any) -> tuple[str, Iterator[bytes]]:
    """Returns the name of the text of a configuration, and the documents of its training split, of pairs both texts."""
    from trainers.shared import components

    split = config.data.train_split
    if config.data.target_field is None:
        source = components.make_text_source(config)
        return source.name, source.documents(split)
    pairs = components.make_pair_source(config)
    both = zip(*(side.documents(split) for side in pairs), strict=True)
    return pairs.name, itertools.chain.from_iterable(both)


def main() -> None:
    import tf_sparse_attention as tsa

    name, documents = training_texts(CONFIG.value)
    tokenizer = tsa.data.train_subwords(itertools.islice(documents, MAX_DOCUMENTS.value), SIZE.value)
    tokenizer.to_file(OUTPUT.value)  # type: ignore[arg-type]  # required
    logging.info("%d subwords of %s; written to %s.", tokenizer.vocabulary_size, name, OUTPUT.value)


def run() -> None:
    """Runs the program."""
    flags.mark_flag_as_required("output")
    console.run(__name__, main)


if __name__ == "__main__":
    run()
