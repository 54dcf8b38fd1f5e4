"""A file of JSON lines as a TFDS data set: texts that belong together, such as a document in several languages."""

import dataclasses
import gzip
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.text_files import SPLITS, assign_split, content_digest

tfds: Any = import_tfds()
SUFFIXES = (".jsonl", ".jsonl.gz")
SPLIT = "split"


@dataclasses.dataclass
class JsonLinesConfig(tfds.core.BuilderConfig):
    """Configuration of `JsonLines`: the file and the fields of its lines."""

    path: str = ""
    fields: tuple[str, ...] = ()


class JsonLines(tfds.core.GeneratorBasedBuilder):
    """The lines of a file, NAME.jsonl or NAME.jsonl.gz, that have all of some fields: one example of strings each.

    A line is an object. Its field "split" is "train", "validation" or "test"; where no line has one, the hash of its
    texts decides (about 90/5/5). How many lines lack a field is logged.

    Args:
        path: the file, UTF-8.
        fields: names of fields with text, one or more.
        data_dir, version: as in `tfds.core.DatasetBuilder`.
        config: `JsonLinesConfig` whose `path` and `fields` take the place of the arguments; its name is not used.

    Raises:
        ValueError: if there is no such file, a line is no object, a field no text, or no line has all of them.

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
        data_dir: str | os.PathLike | None = None,
        config: Any = None,
        version: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, JsonLinesConfig):
            raise ValueError(f"`config` must be a JsonLinesConfig. Received: config={config!r}.")
        path, fields = (path, fields) if config is None else (config.path, config.fields)
        if path is None or not pathlib.Path(path).expanduser().is_file():
            raise ValueError(f"`path` must be an existing file of JSON lines. Received: path={path}.")
        if isinstance(fields, str) or not fields or not all(isinstance(field, str) for field in fields):
            raise ValueError(f"`fields` must be names of fields, one or more. Received: fields={fields!r}.")
        self._path = pathlib.Path(path).expanduser().resolve()
        self._fields = tuple(fields)
        super().__init__(data_dir=data_dir, config=self._config(), version=version)

    def _config(self):
        stem = self._path.name.removesuffix(".gz").removesuffix(".jsonl")
        digest = content_digest(_read(self._path))[:16]
        name = re.sub("[^A-Za-z0-9]+", "_", "_".join([stem, *self._fields])).strip("_")
        return JsonLinesConfig(
            name=f"{name}_{digest}",
            version=self.VERSION,
            description=f"{', '.join(self._fields)} of the lines of {self._path}.",
            path=str(self._path),
            fields=self._fields,
        )

    def _info(self):
        features = {field: tfds.features.Text() for field in self._fields}
        return tfds.core.DatasetInfo(
            builder=self, description="Lines of JSON.", features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # Nothing is downloaded.
        lines = list(read_lines(self._path))
        for number, line in lines:
            _check_texts(self._path, number, line, self._fields)
        complete = [(number, line) for number, line in lines if all(field in line for field in self._fields)]
        if not complete:
            found = sorted({name for _, line in lines for name in line})
            raise ValueError(
                f"`fields` must be those of some lines of {self._path.name}. Received: fields={self._fields}, "
                f"lines with {found}."
            )
        logging.info("%s: %d of %d lines have %s.", self._path.name, len(complete), len(lines), ", ".join(self._fields))
        splits: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        named = any(SPLIT in line for _, line in lines)
        for number, line in complete:
            splits.setdefault(_split_of(self._path, number, line, self._fields, named), []).append((number, line))
        return {split: self._generate_examples(splits[split]) for split in SPLITS if split in splits}

    def _generate_examples(self, lines):
        for number, line in lines:
            yield number, {field: line[field] for field in self._fields}


def read_lines(path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a file of JSON lines with the numbers of their lines, from 1; blank lines are left out.

    Raises:
        ValueError: for a line that is no JSON object in UTF-8.
    """
    for number, content in enumerate(_read(path).split(b"\n"), 1):
        if not content.strip():
            continue
        try:
            line = json.loads(content.decode("utf-8"))
        except ValueError as error:
            raise ValueError(
                f"`path` must hold JSON lines in UTF-8. Received: {path}, line {number}: {error}."
            ) from error
        if not isinstance(line, dict):
            raise ValueError(f"`path` must hold JSON objects. Received: {path}, line {number}: {type(line).__name__}.")
        yield number, line


def _read(path):
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise ValueError(f"`path` must be a whole gzip file. Received: {path}: {error}.") from error


def _check_texts(path, number, line, fields):
    for field in fields:
        if field in line and not isinstance(line[field], str):
            kind = type(line[field]).__name__
            raise ValueError(f"`fields` must be of text. Received: {field!r} of {path.name}, line {number}: {kind}.")


def _split_of(path, number, line, fields, named):
    if not named:
        return assign_split(content_digest("\0".join(line[field] for field in fields).encode()))
    if line.get(SPLIT) not in SPLITS:
        raise ValueError(
            f"`path` must have a 'split' of {', '.join(SPLITS)} in each line, or in none. "
            f"Received: {path.name}, line {number}: {line.get(SPLIT)!r}."
        )
    return line[SPLIT]
