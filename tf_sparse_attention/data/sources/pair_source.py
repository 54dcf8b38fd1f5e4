"""Opens data sets of texts that belong together, such as a document and its translation."""

import os
import pathlib
from typing import Any, NamedTuple

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.sources.paragraphs import UNITS
from tf_sparse_attention.data.sources.text_source import TextSource, open_source
from tf_sparse_attention.data.sources.tfds_preparation import making_builder


class PairSource(NamedTuple):
    """Two texts of each example of one data set: document i of one belongs to document i of the other.

    Attributes:
        source: `TextSource` of what is read.
        target: `TextSource` of what is to be written.
    """

    source: TextSource
    target: TextSource

    @property
    def name(self) -> str:
        """The name of the data set with the fields, such as "wmt14_translate/de-en/1.0.0 (de to en)"."""
        return f"{self.target.name} ({self.source.text_feature} to {self.target.text_feature})"

    @property
    def fingerprint(self) -> str:
        """A string that identifies both texts."""
        return f"{self.source.fingerprint}>{self.target.fingerprint}"


def open_pairs(
    source: str,
    target: str,
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    unit: str = UNITS[0],
    target_end: str | None = None,
    **options: Any,
) -> PairSource:
    """Opens the texts of two fields of each example.

    Args:
        source: the field that is read, such as a language; of JSON lines also several, "question+passages", as one
            text, and fields with a list of texts.
        target: the field to be written.
        tfds: name of a data set of TFDS with these text features, such as "wmt14_translate/de-en" or
            "ted_hrlr_translate/pt_to_en".
        path: a file of JSON lines, NAME.jsonl or NAME.jsonl.gz, instead: lines without one of the fields are left out,
            see `JsonLines`.
        unit: of JSON lines: "document" (default) or "paragraph", whose pairs are the paragraphs of the documents, where
            both have as many.
        target_end: of JSON lines: the line with which targets end, such as the heading of a section that only
            translations have; that line and what follows are left out. None: they are read to their ends.
        **options: `local_dir`, `data_dir` and `try_gcs` as for `open_source`.

    Returns:
        `PairSource`.

    Raises:
        ValueError: if none or both of `tfds` and `path` are given, the fields are the same one, or there is no such
            field, file or data set.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> for english, french in zip(pairs.source.documents("train"), pairs.target.documents("train")):
    ...     print(len(english), len(french))
    """
    checks.check_one_given(tfds=tfds, path=path)
    if source == target:
        raise ValueError(f"`source` and `target` must be two fields. Received: {source!r} for both.")
    if path is None and (unit, target_end) != (UNITS[0], None):
        raise ValueError(
            "`unit` and `target_end` are for JSON lines; a data set of TFDS says what its examples are. "
            f"Received: tfds={tfds}, unit={unit!r}, target_end={target_end!r}."
        )
    if path is None:
        return PairSource(*(open_source(tfds=tfds, text_feature=field, **options) for field in (source, target)))
    from tf_sparse_attention.data.sources.json_lines import JsonLines, check_suffix

    check_suffix(path)
    with making_builder(options.get("data_dir")):
        end_lines = {} if target_end is None else {target: target_end}
        builder = JsonLines(
            path=pathlib.Path(local_path(path)),
            fields=(source, target),
            unit=unit,
            end_lines=end_lines,
            data_dir=options.get("data_dir"),
        )
        return PairSource(*(TextSource(builder, field) for field in (source, target)))
