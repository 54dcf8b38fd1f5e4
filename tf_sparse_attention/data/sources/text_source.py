"""Text data sets from TFDS, text files, JSON lines, or the Python standard library."""

import os
from collections.abc import Iterator
from typing import Any

from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import data_folder
from tf_sparse_attention.data.sources.json_lines import JsonLinesReader
from tf_sparse_attention.data.sources.readers import Reader
from tf_sparse_attention.data.sources.text_files import TEXT, open_text_files
from tf_sparse_attention.data.sources.tfds_reader import find_text_feature, open_tfds

# Documents and words of each split of PG-19, the denominators of published perplexities per word.
# Source: the README of deepmind/pg19 (Rae et al. 2020), commit b0e1f292.
PG19 = {"train": (28_602, 1_973_136_207), "validation": (50, 3_007_061), "test": (100, 6_966_499)}


class TextSource:
    """Documents of a data set. Made by `open_source`.

    Args:
        reader: `Reader` of the data set.
        text_feature: field with the text of an example, a string or UTF-8 bytes.
        data_dir: folder for prepared data.

    Attributes:
        reader, text_feature, data_dir: as above.
        name: name of the data set, such as "tiny_shakespeare/1.0.0".
        fingerprint: string that identifies the content and text feature.
    """

    def __init__(self, reader: Reader, text_feature: str, data_dir: str) -> None:
        self.reader, self.text_feature, self.data_dir = reader, text_feature, data_dir
        self.name, self.fingerprint = reader.name, f"{reader.fingerprint}#{text_feature}"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits. Prepares a TFDS data set, and reads all JSON lines."""
        return self.reader.splits

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterate over the documents of a split, always in the same order.

        Args:
            split: name of a split, or of a part in TFDS syntax ("train[:1%]").

        Returns:
            Iterator of `bytes`, one per document (UTF-8 in all TFDS data sets).

        Raises:
            ValueError: If the split does not exist.
        """
        texts = (example[self.text_feature] for example in self.reader.examples(split))
        return (text.encode() if isinstance(text, str) else text for text in texts)


def open_source(
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    pattern: str = "**/*.txt",
    local_dir: str | os.PathLike | None = None,
    text_feature: str | None = None,
    data_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
    text_field: str | None = None,
) -> TextSource:
    """Open a text data set.

    TFDS data sets are downloaded and prepared on first use. Local files are read in place.

    Args:
        tfds: name of a TFDS data set with configuration ("tiny_shakespeare", "pg19", "wiki40b/en"), or
            "python_source", the source code of the Python standard library, which is the default and needs no download.
        path: instead of `tfds`, a folder of text files or one text file, plain or NAME.gz. For remote paths such as
            gs://bucket/books, all sources read a local copy. Folders named train, validation and test are the splits.
            Otherwise files are split by the hash of their content, and a single file is cut (about 90/5/5).
        pattern: glob pattern of the documents in `path`. Default "**/*.txt".
        local_dir: folder with the files that the builder would download, to work offline. For "pg19" a full or partial
            copy of gs://deepmind-gutenberg (metadata.csv and the folders train, validation and test). For other data
            sets: the manual folder of TFDS, with files of the same name and checksum as the downloads (input.txt for
            "tiny_shakespeare").
        text_feature: name of the feature with the text, for `tfds`. None: the only string feature that is not a file
            name, id or URL.
        data_dir: folder of TFDS and of token stores, local or in a bucket. None: the default of TFDS
            (~/tensorflow_datasets).
        try_gcs: whether prepared data may be read from the public bucket of TFDS.
        text_field: field with the text of JSON lines: `path` is then a file NAME.jsonl or NAME.jsonl.gz, or a folder of
            them, and each line is a document; see `JsonLinesReader`. Several fields joined with "+" are one text.

    Raises:
        ValueError: If both `tfds` and `path` are given, `text_field` is given without `path`, `local_dir` does not
            exist or has another layout, or the data set has no text.
        ConnectionError: If the catalogue of the data set cannot be reached.
        ImportError: If tensorflow-datasets is needed and not installed.

    Example:

    >>> source = open_source(path="books")
    >>> for document in source.documents("train"):
    ...     print(len(document))
    """
    if tfds is not None and path is not None:
        raise ValueError(f"`tfds` and `path` must not both be given. Received: tfds={tfds}, path={path}.")
    if text_field is not None and path is None:
        raise ValueError(f"`text_field` must be given with `path`. Received: text_field={text_field}, tfds={tfds}.")
    if path is None:
        reader = open_tfds(
            tfds, lambda features: [find_text_feature(features, text_feature)], data_dir, local_dir, try_gcs
        )
        return TextSource(reader, reader.fields[0], reader.data_dir)
    if text_field is not None:
        return TextSource(JsonLinesReader(local_path(path), [text_field]), text_field, data_folder(data_dir))
    if text_feature not in (None, TEXT):
        raise ValueError(f"`text_feature` must be None with `path`. Received: text_feature={text_feature}.")
    return TextSource(open_text_files(local_path(path), pattern), TEXT, data_folder(data_dir))


def load_documents(split: str, **source: Any) -> Iterator[bytes]:
    """Iterate over the documents of a split of a text data set.

    Args:
        split: name of the split.
        **source: arguments of `open_source`. Default: the source code of the Python standard library.

    Returns:
        Iterator of `bytes`, one per document.

    Example:

    >>> documents = load_documents("validation", tfds="tiny_shakespeare")
    """
    return open_source(**source).documents(split)


def official_word_count(name: str, split: str, num_documents: int) -> int | None:
    """Return the published number of words of a split, or None.

    Args:
        name: full name of the data set, such as "pg19/0.1.1".
        split: name of the split. Parts ("test[:1]") have no published count.
        num_documents: number of documents read. Only a complete split has a published count.

    Example:

    >>> official_word_count("pg19/0.1.1", "test", num_documents=100)
    6966499
    """
    documents, words = PG19.get(split, (0, None)) if name.split("/")[0] == "pg19" else (0, None)
    return words if num_documents == documents else None
