"""Data sets of pairs of texts, such as documents and their translations."""

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import data_folder
from tf_sparse_attention.data.sources.json_lines import JsonLinesReader, check_suffix
from tf_sparse_attention.data.sources.readers import Reader, warn_once
from tf_sparse_attention.data.sources.text_source import TextSource
from tf_sparse_attention.data.sources.tfds_reader import find_text_feature, open_tfds

UNITS = ("document", "paragraph")


class PairSource(NamedTuple):
    """Pairs of texts: document i of `source` is paired with document i of `target`.

    Attributes:
        source: `TextSource` of the input texts.
        target: `TextSource` of the output texts.
    """

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
        tfds: name of a TFDS data set with these text features, such as "wmt14_translate/de-en" or
            "ted_hrlr_translate/pt_to_en".
        path: instead of `tfds`, a file of JSON lines, NAME.jsonl or NAME.jsonl.gz. Lines that lack a field are left
            out; see `JsonLinesReader`.
        unit: for JSON lines, "document" (default) or "paragraph". Blank lines separate paragraphs. Paragraphs are
            paired if both texts have the same number of paragraphs; other documents are left out.
        target_end: for JSON lines, a line that ends targets, such as the heading of a section that only translations
            have. The last such line and all lines after it are left out. None: targets are not cut.
        data_dir: see `open_source`.
        **options: `local_dir` and `try_gcs`, see `open_source`.

    Raises:
        ValueError: If none or both of `tfds` and `path` are given, the fields are equal, or there is no such field,
            file or data set.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> for english, french in zip(pairs.source.documents("train"), pairs.target.documents("train")):
    ...     print(len(english), len(french))
    """
    checks.check_one_given(tfds=tfds, path=path)
    checks.check_choice("unit", unit, UNITS)
    if source == target:
        raise ValueError(f"`source` and `target` must be two fields. Received: {source!r} for both.")
    if path is None:
        if (unit, target_end) != (UNITS[0], None):
            raise ValueError(
                "`unit` and `target_end` must have their defaults for a TFDS data set. "
                f"Received: tfds={tfds}, unit={unit!r}, target_end={target_end!r}."
            )
        fields = source, target
        tfds_reader = open_tfds(
            tfds, lambda features: [find_text_feature(features, field) for field in fields], data_dir, **options
        )
        return PairSource(*(TextSource(tfds_reader, field, tfds_reader.data_dir) for field in fields))
    check_suffix(path)
    reader: Reader = JsonLinesReader(local_path(path), (source, target))
    if (unit, target_end) != (UNITS[0], None):
        reader = _PairReader(reader, source, target, unit, target_end)
    return PairSource(*(TextSource(reader, field, data_folder(data_dir)) for field in (source, target)))


class _PairReader:
    """Reader of pairs with shortened targets, or of pairs of paragraphs."""

    def __init__(self, reader: Reader, source: str, target: str, unit: str, target_end: str | None) -> None:
        self._reader, self._source, self._target, self._unit, self._end = reader, source, target, unit, target_end
        self.name, self.fingerprint = reader.name, f"{reader.fingerprint}|{unit}|{target_end!r}"

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self._reader.splits

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Iterate over the pairs of a split; see `Reader.examples`.

        Raises:
            ValueError: At the end, if no document has equal numbers of source and target paragraphs.
        """
        return self._read(self._reader.examples(split), split)

    def _read(self, examples, split):
        total = unpaired = 0
        for example in examples:
            total += 1
            texts = example[self._source], _cut_at(example[self._target], self._end)
            sides = [_paragraphs(text) if self._unit == UNITS[1] else [text] for text in texts]
            if len(sides[0]) != len(sides[1]):
                unpaired += 1
                continue
            for pair in zip(*sides, strict=True):
                yield dict(zip((self._source, self._target), pair, strict=True))
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
