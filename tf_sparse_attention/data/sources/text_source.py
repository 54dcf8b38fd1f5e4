"""Text data sets from TFDS, files, or the Python standard library: documents, pairs of texts, and texts with labels."""

import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import data_folder, local_path
from tf_sparse_attention.data.sources.json_lines import JsonLinesReader
from tf_sparse_attention.data.sources.readers import Reader, warn_once
from tf_sparse_attention.data.sources.text_files import JSON_LINES, TEXT, open_text_files
from tf_sparse_attention.data.sources.tfds_reader import find_text_feature, import_tfds, open_tfds

# Documents and words of each split of PG-19, the denominators of published perplexities per word.
# Source: the README of deepmind/pg19 (Rae et al. 2020), commit b0e1f292.
PG19 = {"train": (28_602, 1_973_136_207), "validation": (50, 3_007_061), "test": (100, 6_966_499)}
UNITS = ("document", "paragraph")
MAX_NAMED = 20  # maximum number of labels in a message


class TextSource:
    """Documents of a data set. Made by `open_source`.

    Attributes:
        reader: `Reader` of the data set.
        text_feature: field with the text of an example, a string or UTF-8 bytes.
        data_dir: folder for prepared data.
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
        """Iterate over the documents of a split, `bytes` (UTF-8 in all TFDS data sets), always in the same order.

        Args:
            split: name of a split, or of a part in TFDS syntax ("train[:1%]").

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
            copy of gs://deepmind-gutenberg (metadata.csv and the folders train, validation and test). Otherwise files
            of the same name and checksum as the downloads (input.txt for "tiny_shakespeare").
        text_feature: feature with the text, for `tfds`. None: the only string that is not a file name, id or URL.
        data_dir: folder of TFDS and of token stores, also in a bucket. None: that of TFDS (~/tensorflow_datasets).
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
        find_text = functools.partial(find_text_feature, text_feature=text_feature)
        reader = open_tfds(tfds, [find_text], data_dir, local_dir, try_gcs)
        return TextSource(reader, reader.fields[0], reader.data_dir)
    if text_field is not None:
        return TextSource(JsonLinesReader(local_path(path), [text_field]), text_field, data_folder(data_dir))
    if text_feature not in (None, TEXT):
        raise ValueError(f"`text_feature` must be None with `path`. Received: text_feature={text_feature}.")
    return TextSource(open_text_files(local_path(path), pattern), TEXT, data_folder(data_dir))


def official_word_count(name: str, split: str, num_documents: int) -> int | None:
    """Return the published number of words of a complete split of a data set such as "pg19/0.1.1", or None."""
    documents, words = PG19.get(split, (0, None)) if name.split("/")[0] == "pg19" else (0, None)
    return words if num_documents == documents else None


class PairSource(NamedTuple):
    """Pairs of texts: document i of `source`, the input, is paired with document i of `target`, the output."""

    source: TextSource
    target: TextSource

    @property
    def name(self) -> str:
        """Name of the data set with both fields, such as "wmt14_translate/de-en/1.0.0 (de to en)"."""
        return f"{self.target.name} ({self.source.text_feature} to {self.target.text_feature})"

    @property
    def fingerprint(self) -> str:
        """String that identifies both texts."""
        return f"{self.source.fingerprint}>{self.target.fingerprint}"

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterate over the documents of a split. Each source is followed by its target."""
        sides = (side.documents(split) for side in (self.source, self.target))
        return itertools.chain.from_iterable(zip(*sides, strict=True))


def open_pairs(
    source: str,
    target: str,
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    unit: str = UNITS[0],
    target_end: str | None = None,
    data_dir: str | os.PathLike | None = None,
    **options: Any,
) -> PairSource:
    """Open a data set of pairs of texts, from two fields of each example.

    Args:
        source: field of the input text, such as a language. JSON lines also accept joined fields,
            "question+passages", and fields with a list of texts.
        target: field of the output text.
        tfds: name of a TFDS data set with these text features, such as "wmt14_translate/de-en".
        path: instead of `tfds`, a file of JSON lines, NAME.jsonl or NAME.jsonl.gz; see `JsonLinesReader`.
        unit: for JSON lines, "document" (default) or "paragraph". Blank lines separate paragraphs. Paragraphs are
            paired if both texts have the same number of paragraphs; other documents are left out.
        target_end: for JSON lines, a line that ends targets, such as the heading of a section that only translations
            have. The last such line and all lines after it are left out. None: targets are not cut.
        data_dir: see `open_source`.
        **options: `local_dir` and `try_gcs`, see `open_source`.

    Raises:
        ValueError: If not one of `tfds` and `path` is given, the fields are equal, or a field or file does not exist.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> for english, french in zip(pairs.source.documents("train"), pairs.target.documents("train")):
    ...     print(len(english), len(french))
    """
    checks.check_one_given(tfds=tfds, path=path)
    checks.check_choice("unit", unit, UNITS)
    if source == target:
        raise ValueError(f"`source` and `target` must be two fields. Received: {source!r} for both.")
    fields = source, target
    is_changed = (unit, target_end) != (UNITS[0], None)
    if tfds is not None and is_changed:
        raise ValueError(
            "`unit` and `target_end` must have their defaults for a TFDS data set. "
            f"Received: tfds={tfds}, unit={unit!r}, target_end={target_end!r}."
        )
    finders = [functools.partial(find_text_feature, text_feature=field) for field in fields]
    reader, folder = _open_fields(fields, finders, tfds, path, data_dir, **options)
    reader = _PairReader(reader, fields, unit, target_end) if is_changed else reader
    return PairSource(*(TextSource(reader, field, folder) for field in fields))


def _open_fields(fields, finders, tfds, path, data_dir, **options):
    """Open several fields of JSON lines or of a TFDS data set; return the reader and the folder for prepared data."""
    if path is None:
        reader = open_tfds(tfds, finders, data_dir, **options)
        return reader, reader.data_dir
    if not str(path).endswith(JSON_LINES):
        raise ValueError(f"`path` must be a file {' or '.join(f'NAME{end}' for end in JSON_LINES)}. Received: {path}.")
    return JsonLinesReader(local_path(path), fields), data_folder(data_dir)


class _PairReader:
    """Reader of pairs with shortened targets, or of pairs of paragraphs."""

    def __init__(self, reader: Reader, fields: Sequence[str], unit: str, target_end: str | None) -> None:
        self._reader, self._fields, self._unit, self._end = reader, fields, unit, target_end
        self.name, self.fingerprint = reader.name, f"{reader.fingerprint}|{unit}|{target_end!r}"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self._reader.splits

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Iterate over the pairs of a split; see `Reader.examples`."""
        return self._read(self._reader.examples(split), split)

    def _read(self, examples, split):
        total = unpaired = 0
        for example in examples:
            total += 1
            source, target = self._fields
            texts = example[source], _cut_at(example[target], self._end)
            sides = [_paragraphs(text) if self._unit == UNITS[1] else [text] for text in texts]
            if len(sides[0]) != len(sides[1]):
                unpaired += 1
                continue
            yield from (dict(zip(self._fields, pair, strict=True)) for pair in zip(*sides, strict=True))
        if unpaired and unpaired == total:
            raise ValueError(
                f"`unit` must be {UNITS[0]!r} for texts with different numbers of paragraphs. "
                f"Received: unit={self._unit!r}, with {self.name}."
            )
        if unpaired:
            warn_once(
                f"{self.name}, {split}: {unpaired} of {total} lines are left out because their texts have different "
                "numbers of paragraphs."
            )


def _cut_at(text, end_line):
    """Return the lines before the last `end_line`, or the whole text if there is no such line."""
    lines = text.split("\n")
    ends = [number for number, line in enumerate(lines) if end_line is not None and line.strip() == end_line]
    return "\n".join(lines[: ends[-1]]).rstrip() if ends else text


def _paragraphs(text):
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


class LabeledSource:
    """Texts of a data set with labels. Made by `open_labeled`.

    Attributes:
        text: `TextSource` of the texts.
        label_feature: field with the label of an example: text, or the index of a class if the data set lists classes.
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
        path: instead of `tfds`, a file of JSON lines, NAME.jsonl or NAME.jsonl.gz; see `JsonLinesReader`.
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
    fields = text_feature or "text", label_feature or "label"
    if path is not None and fields[0] == fields[1]:
        raise ValueError(f"`text_feature` and `label_feature` must be two fields. Received: {fields[0]!r} for both.")
    find_text = functools.partial(find_text_feature, text_feature=text_feature)
    finders = find_text, lambda features: _find_label_feature(features, find_text(features), label_feature)
    reader, folder = _open_fields(fields, finders, tfds, path, data_dir, **options)
    text, label = fields if path is not None else reader.fields
    class_names = None if path is not None else getattr(reader.features[label], "names", None)
    return LabeledSource(TextSource(reader, text, folder), label, class_names)


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
