"""Opens data sets of texts that have a label each, such as reviews and whether they praise."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.left_out import warn_once
from tf_sparse_attention.data.sources.text_source import TextSource, open_source
from tf_sparse_attention.data.sources.tfds_preparation import making_builder

MAX_NAMED = 20  # labels in a message


class LabeledSource:
    """The texts of one data set and their labels. Made by `open_labeled`.

    Args:
        text: `TextSource` of the texts.
        label_feature: name of the feature with the labels, a `ClassLabel` of TFDS or text. None: the only `ClassLabel`.

    Attributes:
        text: as above.
        label_feature: its name.
        name: the name of the data set with both features, such as "imdb_reviews/plain_text/1.0.0 (text to label)".
        fingerprint: string that identifies texts and labels.

    Raises:
        ValueError: If there is no such feature, or it is neither.
    """

    def __init__(self, text: TextSource, label_feature: str | None = None) -> None:
        self.text = text
        self.label_feature = _find_label_feature(text, label_feature)
        self.name = f"{text.name} ({text.text_feature} to {self.label_feature})"
        self.fingerprint = f"{text.fingerprint}>{self.label_feature}"

    @property
    def _names(self) -> list[str] | None:
        """The labels of a `ClassLabel` by number; None of labels that are text."""
        return getattr(self.text.features[self.label_feature], "names", None)

    def labels_of(self, split: str) -> list[str]:
        """Returns the label of each text of a split, in their order.

        An empty label is one as any other; a warning says how many texts have it.

        Raises:
            ValueError: If the data set has no such split, or one without labels, as the test splits of GLUE.
        """
        found, names = list(self.text.values(split, self.label_feature)), self._names
        if names is None:
            empty = sum(not label for label in found)
            if empty:
                warn_once(f"{empty} of {len(found)} texts of {self.text.name}, {split}, have the empty label ''.")
            return [label.decode("utf-8") for label in found]
        if min(found, default=0) < 0:
            raise ValueError(f"`split` must be one with labels. Received: {split} of {self.text.name}, without.")
        return [names[label] for label in found]

    def classes(self, split: str) -> list[str]:
        """Returns the labels that there are: those of the data set, where it lists them, or of a split, sorted."""
        names = self._names
        return sorted(set(self.labels_of(split))) if names is None else list(names)

    def numbers_of(self, split: str, classes: Sequence[str]) -> np.ndarray:
        """Returns the place of each label of a split in a list of them, int32 (texts,).

        Raises:
            ValueError: If one is not among them.
        """
        places = {label: place for place, label in enumerate(classes)}
        found = self.labels_of(split)
        for number, label in enumerate(found):
            if label not in places:
                known = ", ".join(map(repr, classes[:MAX_NAMED])) + ", ..." * (len(classes) > MAX_NAMED)
                raise ValueError(
                    f"The labels of {self.text.name} must be among those of training: {known}. "
                    f"Received: {label!r} of example {number} of the split {split}."
                )
        return np.array([places[label] for label in found], np.int32)


def _find_label_feature(text, name):
    """Returns the name of the feature with the labels, or raises a `ValueError`."""
    tfds = import_tfds()
    features = dict(text.features.items())
    kinds = {"ClassLabel": tfds.features.ClassLabel, "Text": tfds.features.Text}
    found = {kind: [key for key, feature in features.items() if isinstance(feature, kinds[kind])] for kind in kinds}
    if name is None and len(found["ClassLabel"]) == 1:
        return found["ClassLabel"][0]
    if name is None or name not in found["ClassLabel"] + found["Text"] or name == text.text_feature:
        raise ValueError(
            "`label_feature` must be a feature with labels, another one than that of the texts. "
            f"Received: label_feature={name}, with {found['ClassLabel']} of classes and {found['Text']} of text."
        )
    return name


def open_labeled(
    text_feature: str | None = None,
    label_feature: str | None = None,
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    **options: Any,
) -> LabeledSource:
    """Opens texts with their labels.

    Args:
        text_feature: the field with the text, of JSON lines also several, "title+text", as one. None: of JSON lines
            "text", of TFDS the one that `open_source` finds.
        label_feature: the field with the label, of JSON lines a string. None: "label", of TFDS the only `ClassLabel`.
        tfds: name of a data set of TFDS, such as "imdb_reviews" or "glue/sst2".
        path: a file of JSON lines, NAME.jsonl or NAME.jsonl.gz, instead, see `JsonLines`: lines without one of the
            fields are left out, and "split" says where they belong.
        **options: `local_dir`, `data_dir` and `try_gcs` as for `open_source`.

    Returns:
        `LabeledSource`.

    Raises:
        ValueError: if none or both of `tfds` and `path` are given, or there is no such field, file or data set.

    Example:

    >>> source = open_labeled(path="reviews.jsonl", data_dir="/tmp/data")
    >>> for text, label in zip(source.text.documents("train"), source.labels_of("train")):
    ...     print(len(text), label)
    """
    checks.check_one_given(tfds=tfds, path=path)
    if path is None:
        return LabeledSource(open_source(tfds=tfds, text_feature=text_feature, **options), label_feature)
    from tf_sparse_attention.data.sources.json_lines import JsonLines, check_suffix

    check_suffix(path)
    fields = text_feature or "text", label_feature or "label"
    if fields[0] == fields[1]:
        raise ValueError(f"`text_feature` and `label_feature` must be two fields. Received: {fields[0]!r} for both.")
    with making_builder(options.get("data_dir")):
        builder = JsonLines(path=pathlib.Path(local_path(path)), fields=fields, data_dir=options.get("data_dir"))
        return LabeledSource(TextSource(builder, fields[0]), fields[1])
