"""Files of JSON lines as a TFDS data set: texts that belong together, such as a document in several languages."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.file_splits import (
    JSON_LINES,
    SPLITS,
    assign_split,
    content_digest,
    json_line_files,
    read_content,
)
from tf_sparse_attention.data.sources.left_out import warn_once
from tf_sparse_attention.data.sources.paragraphs import UNITS, cut_at, paired_paragraphs

tfds: Any = import_tfds()
SPLIT = "split"


def check_suffix(path: str | os.PathLike | None) -> None:
    """Raises a `ValueError` unless a file is called as one of JSON lines."""
    if not str(path).endswith(JSON_LINES):
        raise ValueError(f"`path` must be a file {' or '.join(f'NAME{end}' for end in JSON_LINES)}. Received: {path}.")


@dataclasses.dataclass
class JsonLinesConfig(tfds.core.BuilderConfig):
    """Configuration of `JsonLines`: the file or folder, the fields of its lines and what an example is."""

    path: str = ""
    fields: tuple[str, ...] = ()
    unit: str = UNITS[0]
    end_lines: tuple[tuple[str, str], ...] = ()


class JsonLines(tfds.core.GeneratorBasedBuilder):
    """The lines of a file, NAME.jsonl or NAME.jsonl.gz, that have all of some fields: one example of strings each, or
    one of each of their paragraphs.

    A line is an object; whole numbers in it are read as the text of their digits. Its field "split" is "train",
    "validation" or "test"; where no line has one, the hash of its texts decides (about 90/5/5). Of a folder the lines
    of all such files in it and below it are read; where it has folders train, validation or test, these are the splits
    of what is in them, and files in none are an error.

    Lines that lack a field, or have null or NaN in it, as pandas writes missing values, are left out. A warning says in
    every process how many they are, and of how many the paragraphs do not pair up.

    Args:
        path: the file, UTF-8, or a folder of such files.
        fields: names of fields with text, one or more. Several with "+" between, such as "question+passages", are one
            text, in this order; so are the texts of a list. A blank line divides them.
        unit: "document", an example for each line (default), or "paragraph", one for each paragraph, which blank lines
            divide; lines whose texts have different numbers of paragraphs are left out.
        end_lines: {field: line}, the line with which its texts end, such as the heading of what only a translation
            has; that line and what follows are left out. None: no field has one.
        data_dir, version: as in `tfds.core.DatasetBuilder`.
        config: `JsonLinesConfig` whose values take the place of these arguments; its name is not used.

    Raises:
        ValueError: if there is no such file or unit, or no file in a folder, it is empty, a line is no object, a field
            no text, no line has all of them, or no line pairs of paragraphs.

    Example:

    >>> builder = JsonLines(path="manpages.jsonl.gz", fields=("en", "fr"), data_dir="/tmp/data")
    """

    name = "json_lines"
    VERSION = tfds.core.Version("1.0.0")

    def __init__(
        self,
        *,
        path: str | os.PathLike | None = None,
        fields: Sequence[str] = (),
        unit: str = UNITS[0],
        end_lines: Mapping[str, str] | None = None,
        data_dir: str | os.PathLike | None = None,
        config: Any = None,
        version: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, JsonLinesConfig):
            raise ValueError(f"`config` must be a JsonLinesConfig. Received: config={config!r}.")
        if config is not None:
            path, fields, unit, end_lines = config.path, config.fields, config.unit, dict(config.end_lines)
        if path is None or not pathlib.Path(path).expanduser().exists():
            raise ValueError(f"`path` must be an existing file of JSON lines, or a folder. Received: path={path}.")
        if isinstance(fields, str) or not fields or not all(isinstance(field, str) for field in fields):
            raise ValueError(f"`fields` must be names of fields, one or more. Received: fields={fields!r}.")
        if unit not in UNITS:
            raise ValueError(f"`unit` must be one of {', '.join(UNITS)}. Received: unit={unit!r}.")
        if set(end_lines or {}) - set(fields):
            raise ValueError(f"`end_lines` must be of some of `fields`. Received: {end_lines}, with {tuple(fields)}.")
        self._path = pathlib.Path(path).expanduser().resolve()
        self._fields, self._unit, self._end_lines = tuple(fields), unit, dict(end_lines or {})
        self._files = [self._path] if self._path.is_file() else json_line_files(self._path)
        if not self._files:
            raise ValueError(f"`path` must hold files {' or '.join(JSON_LINES)}. Received: path={path}.")
        self._folders = [split for split in SPLITS if (self._path / split).is_dir()]
        super().__init__(data_dir=data_dir, config=self._config(), version=version)
        self._report()

    def _config(self):
        stem = self._path.name.removesuffix(".gz").removesuffix(".jsonl")
        made_of = self._content() + (json.dumps(self._end_lines).encode() if self._end_lines else b"")
        digest = content_digest(made_of)[:16]
        parts = [stem, *self._fields, *(["paragraphs"] if self._unit == UNITS[1] else [])]
        name = re.sub("[^A-Za-z0-9]+", "_", "_".join(parts)).strip("_")
        return JsonLinesConfig(
            name=f"{name}_{digest}",
            version=self.VERSION,
            description=f"{', '.join(self._fields)} of the lines of {self._path}.",
            path=str(self._path),
            fields=self._fields,
            unit=self._unit,
            end_lines=tuple(self._end_lines.items()),
        )

    def _content(self):
        """Returns what the name of a configuration is a hash of: the file, or names and hashes of those in a folder."""
        if self._path.is_file():
            return read_content(self._path)
        lines = [f"{file.relative_to(self._path)} {content_digest(read_content(file))}" for file in self._files]
        return "\n".join(lines).encode("utf-8", errors="surrogateescape")

    def _lines(self):
        """Yields all lines with where they are: (file, number, line)."""
        for file in self._files:
            folder = file.relative_to(self._path).parts[0] if self._folders else ""
            if self._folders and folder not in self._folders:
                raise ValueError(f"`path` must hold files in {', '.join(self._folders)} alone. Received: {file}.")
            for number, line in read_lines(file, read_content(file)):
                yield file, number, {**line, SPLIT: folder} if folder else line

    def _info(self):
        features = {field: tfds.features.Text() for field in self._fields}
        return tfds.core.DatasetInfo(
            builder=self, description="Lines of JSON.", features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # Nothing is downloaded.
        lines = list(self._lines())
        splits: dict[str, list[tuple[str, list[tuple[str, ...]]]]] = {}
        named = any(SPLIT in line for _, _, line in lines)
        for file, number, line in lines:
            if _is_complete(line, self._fields):
                split = _split_of(file, number, line, self._fields, named)
                begin = "" if file == self._path else f"{self._files.index(file):06}-"
                splits.setdefault(split, []).append((f"{begin}{number:09}", self._examples(line)))
        return {split: self._generate_examples(splits[split]) for split in SPLITS if split in splits}

    def _report(self):
        """Warns of what is left out: here and not where lines are read, which only the first process does."""
        total, complete, unpaired = 0, 0, 0
        names: set[str] = set()
        for file, number, line in self._lines():
            _check_texts(file, number, line, self._fields)
            total, names = total + 1, names | set(line)
            if _is_complete(line, self._fields):
                complete, unpaired = complete + 1, unpaired + (not self._examples(line))
        if not total:
            raise ValueError(f"`path` must hold lines of JSON. Received: {self._path}, without any.")
        if not complete:
            raise ValueError(
                f"`fields` must be those of some lines of {self._path.name}. Received: fields={self._fields}, "
                f"lines with {sorted(names)}."
            )
        if unpaired == complete:
            raise ValueError(
                f"`unit` must be {UNITS[0]!r} for texts that have different numbers of paragraphs. "
                f"Received: unit={self._unit!r}, with {self._path.name}."
            )
        if complete < total:
            lacked = ", ".join(names_of(self._fields))
            warn_once(f"{self._path}: {total - complete} of {total} lines are left out, they lack one of {lacked}.")
        if unpaired:
            reason = "their texts have different numbers of paragraphs"
            warn_once(f"{self._path}: {unpaired} of {complete} lines are left out, {reason}.")

    def _examples(self, line):
        """Returns the texts of a line, a tuple for each example; of paragraphs that do not pair up there are none."""
        texts = tuple(cut_at(text_of(line, field), self._end_lines.get(field)) for field in self._fields)
        return [texts] if self._unit == UNITS[0] else paired_paragraphs(texts) or []

    def _generate_examples(self, lines):
        for place, examples in lines:
            for part, texts in enumerate(examples):
                yield f"{place}-{part:06}", dict(zip(self._fields, texts, strict=True))


def read_lines(path: pathlib.Path, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a file of JSON lines with the numbers of their lines, from 1; blank lines are left out.

    Fields that are null or NaN are left out too.

    Raises:
        ValueError: for a line that is no JSON object in UTF-8.
    """
    for number, text in enumerate(content.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text.decode("utf-8"))
        except ValueError as error:
            raise ValueError(
                f"`path` must hold JSON lines in UTF-8. Received: {path}, line {number}: {error}."
            ) from error
        if not isinstance(line, dict):
            raise ValueError(f"`path` must hold JSON objects. Received: {path}, line {number}: {type(line).__name__}.")
        yield number, {name: _as_text(value) for name, value in line.items() if value is not None and value == value}


def _as_text(value):
    """Whole numbers are the text of their digits, as labels often are."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_complete(line, fields):
    return all(name in line for name in names_of(fields))


def names_of(fields: Sequence[str]) -> list[str]:
    """Returns the names in fields, of which those with "+" between are one text."""
    return [name for field in fields for name in field.split("+")]


def text_of(line: Mapping[str, Any], field: str) -> str:
    """Returns the text of a field of a line, one with "+" between names, or of a list, with blank lines between."""
    values = [line[name] for name in names_of([field])]
    return "\n\n".join(text for value in values for text in ([value] if isinstance(value, str) else value))


def _check_texts(path, number, line, fields):
    for name in names_of(fields):
        parts = line[name] if isinstance(line.get(name), list) else [line.get(name, "")]
        wrong = [type(part).__name__ for part in parts if not isinstance(part, str)]
        if wrong:
            raise ValueError(
                f"`fields` must be of text, or lists of texts. Received: {name!r} of {path.name}, line {number}: "
                f"{wrong[0]}."
            )


def _split_of(path, number, line, fields, named):
    if not named:
        return assign_split(content_digest("\0".join(text_of(line, field) for field in fields).encode()))
    if line.get(SPLIT) not in SPLITS:
        raise ValueError(
            f"`path` must have a 'split' of {', '.join(SPLITS)} in each line, or in none. "
            f"Received: {path.name}, line {number}: {line.get(SPLIT)!r}."
        )
    return line[SPLIT]
