"""Opens text data sets: by TFDS name, a folder, a file, or Python's own source."""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.checks import did_you_mean
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import data_folder, import_tfds
from tf_sparse_attention.data.sources.reading import read_feature
from tf_sparse_attention.data.sources.tfds_preparation import is_of_network, making_builder, pg19_fingerprint, prepare

# A data set with several strings (a text and its title, say) is read by the first of these names that it has.
NO_TEXT = ("id", "filename", "file_name", "image/filename", "url")  # what sets of images have as strings
TEXT_FEATURES = ("text", "book_text", "content", "document", "article", "story")


class TextSource:
    """The documents of one TFDS data set, which is prepared on first use.

    Made by `open_source`.

    Attributes:
        name: full name of the data set with configuration and version, such as "tiny_shakespeare/1.0.0".
        fingerprint: string that identifies content and text feature; available before the data set is prepared.
        text_feature: name of the feature that is read.
        data_dir: folder of TFDS in which the data set is prepared, a string since it may be in a bucket.

    Args:
        builder: `tfds.core.DatasetBuilder`.
        text_feature: name of the text feature, or None to find it.
        local_dir: folder with the files that the builder would download, or None.
        try_gcs: whether a prepared copy may come from the public bucket of TFDS.
        variant: string that distinguishes sources of one name in the fingerprint.
    """

    def __init__(
        self,
        builder: Any,
        text_feature: str | None = None,
        local_dir: str | None = None,
        try_gcs: bool = False,
        variant: str = "",
    ) -> None:
        self._builder, self._local_dir, self._try_gcs = builder, local_dir, try_gcs
        self._ready = False
        self.name = self._builder.info.full_name
        self.text_feature = find_text_feature(self._builder.info.features, text_feature)
        self.data_dir = str(self._builder.data_dir_root)
        self.fingerprint = f"{self.name}#{self.text_feature}" + (f"@{variant}" if variant else "")

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits. Prepares the data set."""
        self._prepare()
        return tuple(self._builder.info.splits)

    @property
    def features(self) -> Any:
        """The features of the data set, by name."""
        return self._builder.info.features

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterates over the documents of a split, always in the same order.

        Args:
            split: name of a split, or a part of one in the syntax of TFDS ("train[:1%]").

        Returns:
            Iterator of `bytes`, one document each (UTF-8 in all data sets of TFDS).

        Raises:
            ValueError: If the data set has no such split.
        """
        return self.values(split, self.text_feature)

    def values(self, split: str, feature: str) -> Iterator[Any]:
        """Iterates over the values of any feature, by name, in the order of the documents; see `documents`."""
        self._prepare()
        return read_feature(self._builder, split, feature)

    def _prepare(self):
        if not self._ready:
            prepare(self._builder, self._local_dir, self._try_gcs)
            self._ready = True


def find_text_feature(features: Any, text_feature: str | None = None) -> str:
    """Returns the name of the feature that holds the text of an example.

    Args:
        features: `tfds.features.FeaturesDict`.
        text_feature: name of the feature. None: the only string feature that is no name of a file and the like, or
            among several the first that is called text, book_text, content, document, article or story.

    Raises:
        ValueError: If the named feature is not a string, or the choice is ambiguous.
    """
    flat = dict(features.items()) if hasattr(features, "items") else {}
    strings = [name for name, feature in flat.items() if _is_string(feature)]
    if text_feature is None:
        texts = [name for name in strings if name not in NO_TEXT]
        known = [name for name in TEXT_FEATURES if name in texts] or (texts if len(texts) == 1 else [])
        text_feature = known[0] if known else None
    if text_feature is None or text_feature not in strings:
        raise ValueError(
            "`text_feature` must be a string feature of the data set, which has to be one of text. "
            f"Received: text_feature={text_feature}, string features: {', '.join(strings) or 'none'}, "
            f"all features: {', '.join(flat) or features}."
        )
    return text_feature


def _is_string(feature):
    # A nested feature has a dictionary of shapes; a list of strings is no document. Strings are objects to NumPy.
    return getattr(feature, "shape", None) == () and np.dtype(feature.np_dtype) == object


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
    """Opens a text data set. It is downloaded and prepared when its documents are first read.

    Args:
        tfds: name of a data set of TFDS with configuration ("tiny_shakespeare", "pg19", "wiki40b/en"), or
            "python_source", the Python standard library's own source, which needs no download and is the default.
        path: folder of text files, or one text file, instead of `tfds`, plain or NAME.gz; see `TextFolder`. At an
            address such as gs://bucket/books a local copy is read, see `local_path`; so it is for the other sources.
        pattern: glob pattern of the documents in `path`. Default "**/*.txt".
        local_dir: folder with the files that the builder would download, so that it works offline. For "pg19" a copy,
            or a part, of gs://deepmind-gutenberg (metadata.csv and the folders train, validation and test). For any
            other it is the manual folder of TFDS: a file in it that has the name and checksum of the download is
            used instead (input.txt for "tiny_shakespeare").
        text_feature: name of the feature with the text; None finds it.
        data_dir: folder of TFDS, local or in a bucket; None is TFDS's own default (~/tensorflow_datasets).
        try_gcs: whether prepared data may be read from the public bucket of TFDS.
        text_field: of JSON lines, the field with the text: `path` is then a file NAME.jsonl or NAME.jsonl.gz, or a
            folder of them, and each line is a document; see `JsonLines`. Several fields with "+" between are one text.

    Returns:
        `TextSource`.

    Raises:
        ValueError: If both `tfds` and `path` are given, or `text_field` without `path`, `local_dir` does not exist or
            has not the layout of the data set, or the data set has no text.
        ConnectionError: If the data set is of a catalogue that cannot be reached.
        ImportError: If tensorflow-datasets is not installed.

    Example:

    >>> source = open_source(path="books")
    >>> for document in source.documents("train"):
    ...     print(len(document))
    """
    if tfds is not None and path is not None:
        raise ValueError(f"`tfds` and `path` must not both be given. Received: tfds={tfds}, path={path}.")
    if text_field is not None and path is None:
        raise ValueError(f"`text_field` must be given with `path`. Received: text_field={text_field}, tfds={tfds}.")
    corpus_dir: str | None = check_folder(local_dir)
    with making_builder(data_dir):
        if text_field is not None:
            from tf_sparse_attention.data.sources.json_lines import JsonLines

            return TextSource(JsonLines(path=local_path(path), fields=(text_field,), data_dir=data_dir), text_field)
        if path is not None:
            from tf_sparse_attention.data.sources.text_files import TextFolder

            return TextSource(TextFolder(path=local_path(path), pattern=pattern, data_dir=data_dir), text_feature)
        if tfds in (None, "python_source"):
            from tf_sparse_attention.data.sources.python_source import PythonSource

            return TextSource(PythonSource(data_dir=data_dir), text_feature)
        library = import_tfds()
        variant = ""
        if corpus_dir is not None and _without_config(tfds) == "pg19":
            variant = f"local_{pg19_fingerprint(corpus_dir)}"
            data_dir = os.path.join(data_folder(data_dir), variant)
        builder = find_builder(library, str(tfds), data_dir=data_dir, try_gcs=try_gcs)
        return TextSource(builder, text_feature, corpus_dir, try_gcs, variant)


def find_builder(library: Any, name: str, **options: Any) -> Any:
    """Returns the builder of a data set of TFDS.

    Args:
        library: the module of TFDS.
        name: of the data set, with its configuration.
        **options: arguments of `tfds.builder`.

    Raises:
        ValueError: If there is no such data set.
    """
    try:
        return library.builder(name, **options)
    except ValueError as error:  # of a name that TFDS cannot read, or does not know, which lists a thousand
        known = library.list_builders()
        if _without_config(name) in known:
            config = name.partition("/")[2].partition(":")[0]
            configs = list(library.builder_cls(_without_config(name)).builder_configs)
            if not config or config in configs:
                raise
            raise ValueError(
                f"`tfds` must name a configuration of {_without_config(name)}: {', '.join(configs) or 'it has none'}."
                f"{did_you_mean(config, configs)} Received: tfds={name}."
            ) from error
        raise ValueError(
            "`tfds` must be the name of a data set of TFDS; a folder of text files, or a file, is `path`."
            f"{did_you_mean(str(name), known)} Received: tfds={name}."
        ) from error
    except Exception as error:  # of the catalogues of others, "huggingface:NAME", which their libraries look up
        if not is_of_network(error):
            raise
        raise ConnectionError(
            f"`tfds` must be the name of a data set that can be reached. Received: tfds={name}, with {error}."
        ) from error


def _without_config(name):
    """Returns the name of a data set without its configuration, "wiki40b" of "wiki40b/en"."""
    return re.split("[/:]", name)[0]


def check_folder(local_dir: str | os.PathLike | None) -> str | None:
    """Returns the full path of a folder, None for None, or raises a `ValueError` if there is none."""
    if local_dir is None:
        return None
    folder = pathlib.Path(local_dir).expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(f"`local_dir` must be an existing folder. Received: local_dir={local_dir}.")
    return str(folder)


def load_documents(split: str, **source: Any) -> Iterator[bytes]:
    """Iterates over the documents of a split of a text data set.

    Args:
        split: name of the split.
        **source: arguments of `open_source`; none: the Python standard library's own source.

    Returns:
        Iterator of `bytes`, one document each.

    Example:

    >>> documents = load_documents("validation", tfds="tiny_shakespeare")
    """
    return open_source(**source).documents(split)
