"""Data sets of texts with labels, such as reviews with their sentiment."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import data_folder, import_tfds
from tf_sparse_attention.data.sources.json_lines import JsonLinesReader, check_suffix
from tf_sparse_attention.data.sources.readers import warn_once
from tf_sparse_attention.data.sources.text_source import TextSource
from tf_sparse_attention.data.sources.tfds_reader import find_text_feature, open_tfds

MAX_NAMED = 20  # maximum number of labels in a message


class LabeledSource:
    """Texts of a data set with labels. Made by `open_labeled`.

    Args:
        text: `TextSource` of the texts.
        label_feature: field with the label of an example: text, or an index into `class_names`.
        class_names: names of the classes. None: labels are text.

    Attributes:
        text, label_feature: as above.
        name: name of the data set with both fields, such as "imdb_reviews/plain_text/1.0.0 (text to label)".
        fingerprint: string that identifies texts and labels.
    """

    def __init__(self, text: TextSource, label_feature: str, class_names: Sequence[str] | None = None) -> None:
        self.text, self.label_feature, self._class_names = text, label_feature, class_names
        self.name = f"{text.name} ({text.text_feature} to {label_feature})"
        self.fingerprint = f"{text.fingerprint}>{label_feature}"

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterate over the texts of a split."""
        return self.text.documents(split)

    def labels(self, split: str) -> list[str]:
        """Return the label of each text of a split, in order.

        The empty label is valid; a warning reports how many texts have it.

        Raises:
            ValueError: If the split does not exist, or the split has no labels, like the test splits of GLUE.
        """
        labels = [example[self.label_feature] for example in self.text.reader.examples(split)]
        if self._class_names is None:
            empty = sum(not label for label in labels)
            if empty:
                warn_once(f"{empty} of {len(labels)} texts of {self.text.name}, {split}, have the empty label ''.")
            return [label.decode("utf-8") if isinstance(label, bytes) else label for label in labels]
        if min(labels, default=0) < 0:
            raise ValueError(f"`split` must have labels. Received: split={split} of {self.text.name}, without labels.")
        return [self._class_names[label] for label in labels]

    def classes(self, split: str) -> list[str]:
        """Return the classes of the data set, or the sorted labels of a split if the data set does not list classes."""
        return sorted(set(self.labels(split))) if self._class_names is None else list(self._class_names)

    def class_ids(self, split: str, classes: Sequence[str]) -> np.ndarray:
        """Return the index of each label of a split in a list of classes, int32 (num_texts,).

        Raises:
            ValueError: If a label is not in `classes`.
        """
        ids = {label: number for number, label in enumerate(classes)}
        labels = self.labels(split)
        for number, label in enumerate(labels):
            if label not in ids:
                known = ", ".join(map(repr, classes[:MAX_NAMED])) + ", ..." * (len(classes) > MAX_NAMED)
                raise ValueError(
                    f"The labels of {self.text.name} must be among the training labels: {known}. "
                    f"Received: {label!r} of example {number} of the split {split}."
                )
        return np.array([ids[label] for label in labels], np.int32)


def open_labeled(
    text_feature: str | None = None,
    label_feature: str | None = None,
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    **options: Any,
) -> LabeledSource:
    """Open a data set of texts with labels.

    Args:
        text_feature: field with the text. JSON lines also accept joined fields, "title+text". None: "text" for JSON
            lines; for TFDS the only string feature that is not a file name, id or URL.
        label_feature: field with the label: a string or an integer for JSON lines, a `ClassLabel` or text for TFDS.
            None: "label" for JSON lines, the only `ClassLabel` for TFDS.
        tfds: name of a TFDS data set, such as "imdb_reviews" or "glue/sst2".
        path: instead of `tfds`, a file of JSON lines, NAME.jsonl or NAME.jsonl.gz, see `JsonLinesReader`. Lines that
            lack a field are left out, and the field "split" can specify the split of a line.
        data_dir: see `open_source`.
        **options: `local_dir` and `try_gcs`, see `open_source`.

    Raises:
        ValueError: If none or both of `tfds` and `path` are given, or there is no such field, file or data set.

    Example:

    >>> source = open_labeled(path="reviews.jsonl", data_dir="/tmp/data")
    >>> for text, label in zip(source.text.documents("train"), source.labels("train")):
    ...     print(len(text), label)
    """
    checks.check_one_given(tfds=tfds, path=path)
    if path is None:

        def find_fields(features: Any) -> tuple[str, str]:
            text = find_text_feature(features, text_feature)
            return text, _find_label_feature(features, text, label_feature)

        reader = open_tfds(tfds, find_fields, data_dir, **options)
        text, label = reader.fields
        class_names = getattr(reader.features[label], "names", None)
        return LabeledSource(TextSource(reader, text, reader.data_dir), label, class_names)
    check_suffix(path)
    fields = text_feature or "text", label_feature or "label"
    if fields[0] == fields[1]:
        raise ValueError(f"`text_feature` and `label_feature` must be two fields. Received: {fields[0]!r} for both.")
    lines = JsonLinesReader(local_path(path), fields)
    return LabeledSource(TextSource(lines, fields[0], data_folder(data_dir)), fields[1])


def _find_label_feature(features, text_feature, name):
    """Return the name of the feature with the labels."""
    kinds = {kind: getattr(import_tfds().features, kind) for kind in ("ClassLabel", "Text")}
    names = {kind: [key for key, feature in features.items() if isinstance(feature, kinds[kind])] for kind in kinds}
    if name is None and len(names["ClassLabel"]) == 1:
        return names["ClassLabel"][0]
    if name is None or name not in names["ClassLabel"] + names["Text"] or name == text_feature:
        raise ValueError(
            "`label_feature` must be a feature with classes or text, and differ from `text_feature`. "
            f"Received: label_feature={name}, with classes in {names['ClassLabel']} and text in {names['Text']}."
        )
    return name
