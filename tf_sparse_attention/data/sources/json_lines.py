"""Reads JSON lines: each line is an object with text fields, such as a document in several languages."""

import collections
import functools
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence

from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    assign_split,
    content_digest,
    existing_path,
    file_fingerprint,
    list_files,
    open_content,
    readable_name,
)
from tf_sparse_attention.data.sources.readers import Part, parse_split, split_error, warn_once
from tf_sparse_attention.data.sources.text_files import JSON_LINES

SPLIT = "split"


class JsonLinesReader:
    """Lines of a file NAME.jsonl or NAME.jsonl.gz, or of all such files in a folder.

    An example is {field: text} of a line that has all fields. Integers are converted to text. Lines are read one at a
    time, so memory use does not grow with the file. Opening a file hashes its bytes.

    The field "split" is "train", "validation" or "test", in every line or in none. Without this field, the hash of the
    texts of a line decides its split (about 90/5/5). Subfolders named train, validation or test are the splits.
    Examples are in the order of the lines. Parts such as "train[90%:]" take lines evenly from the whole split, so
    parts of a sorted file are representative samples. The first part needs an extra pass that counts the lines.

    Lines that lack a field, or have null or NaN (missing values of pandas) in it, are left out, with a warning.

    Args:
        path: the file, UTF-8, or a folder of such files.
        fields: names of text fields. Names joined with "+", such as "question+passages", form one text; so does a field
            with a list of texts. Blank lines separate the joined texts.

    Attributes:
        name: name for logs and files.
        fingerprint: string that changes with the bytes of the files and the fields.

    Raises:
        ValueError: If the file does not exist, or there are no files, no lines, or no line with all fields. While lines
            are read: if a line is not an object, a field is not text, a split is unknown, or a file changed.

    Example:

    >>> reader = JsonLinesReader("manpages.jsonl", ("en", "fr"))
    >>> next(reader.examples("train"))["fr"]
    'nom'
    """

    def __init__(self, path: str | os.PathLike, fields: Sequence[str]) -> None:
        self._path = existing_path(path, "file of JSON lines, or a folder of them")
        self._fields, self._names = tuple(fields), _field_names(fields)
        self._files = {"": [self._path]}
        if self._path.is_dir():
            splits = list_files(self._path, _find_json_lines, "**/*", " or ".join(JSON_LINES))
            self._files = {split: files for split, files in splits.items() if files}
        self._digests = {file: file_fingerprint(file) for members in self._files.values() for file in members}
        if not self._digests:
            raise ValueError(f"`path` must hold files {' or '.join(JSON_LINES)}. Received: path={path}.")
        lines = [f"{digest} {file.relative_to(self._path)}" for file, digest in self._digests.items()]
        digest = content_digest("\n".join(lines).encode("utf-8", errors="surrogateescape"))[:16]
        self.name = f"json_lines/{readable_name(self._path, 'lines')}_{digest}"
        self.fingerprint = f"{self.name}#{','.join(self._fields)}"
        self._has_split_field = _is_present(self._first_complete_line(), SPLIT)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have lines. Reads all lines, once."""
        return tuple(split for split in SPLITS if self._counts[split])

    @functools.cached_property
    def _counts(self) -> Mapping[str, int]:
        """Number of examples in each split."""
        return collections.Counter(split for part in self._files for split, _ in self._read(part))

    def examples(self, split: str) -> Iterator[dict[str, str]]:
        """Iterate over the examples of a split, or of a part of one; see `Reader.examples`.

        Raises:
            ValueError: If the split has no lines, at the end of the pass. See also `JsonLinesReader`.
        """
        known = SPLITS if "" in self._files else tuple(self._files)
        return itertools.chain.from_iterable(map(self._read_part, parse_split(split, self.name, known)))

    def _read_part(self, part: Part) -> Iterator[dict[str, str]]:
        seen: collections.Counter[str] = collections.Counter()
        count = self._counts[part.split] if part.is_slice else 0
        chosen, step = part.indices(count), _coprime_step(count)
        for split, example in self._read(part.split if part.split in self._files else ""):
            # Multiples of the step visit each index below `count` once, evenly.
            if split == part.split and (not part.is_slice or seen[split] * step % count in chosen):
                yield example
            seen[split] += 1
        if not seen[part.split]:
            others = [split for split in SPLITS if seen[split]] or [name for name in self._files if name != part.split]
            raise split_error(part.split, self.name, others)

    def _read(self, part):
        """Yield (split, example) for the lines of a part of the files, then warn about lines that lack a field."""
        total = complete = 0
        for file, number, line in self._lines(part):
            total += 1
            if not self._is_complete(line):
                continue
            complete += 1
            example = {field: self._text(line, field, file, number) for field in self._fields}
            yield part or self._split(line, example, file, number), example
        if complete < total:
            warn_once(
                f"{self._path / part}: {total - complete} of {total} lines are left out because they lack one of "
                f"{', '.join(self._names)}."
            )

    def _lines(self, part):
        """Yield (file, number from 1, object) for the lines of a part of the files that are not blank."""
        for file in self._files[part]:
            with open_content(file) as content:
                for number, text in enumerate(content, 1):
                    if text.strip():
                        yield file, number, _parse(text, file, number)
            if file_fingerprint(file) != self._digests[file]:
                raise ValueError(f"`path` must not change while it is being read. Received: changed file {file}.")

    def _is_complete(self, line):
        return all(_is_present(line, name) for name in self._names)

    def _first_complete_line(self):
        names: set[str] = set()
        for part in self._files:
            for _, _, line in self._lines(part):
                if self._is_complete(line):
                    return line
                names.update(line)
        raise ValueError(
            f"`path` must hold lines of JSON with the fields {', '.join(self._names)}. "
            f"Received: {self._path} with the fields {', '.join(map(repr, sorted(names))) or 'none'}."
        )

    def _text(self, line, field, file, number):
        """Return the text of a field; several names or a list of texts are joined with blank lines."""
        texts = []
        for name in _field_names([field]):
            for value in line[name] if isinstance(line[name], list) else [line[name]]:
                if isinstance(value, bool) or not isinstance(value, str | int):
                    raise ValueError(
                        f"Fields of JSON lines must be text, or lists of texts. Received: {name!r} of {file.name}, "
                        f"line {number}: {type(value).__name__}."
                    )
                texts.append(str(value))
        text = "\n\n".join(texts)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            source = f"{field!r} of {file.name}, line {number}"
            raise ValueError(f"Fields of JSON lines must be Unicode text. Received: {source}: {error}.") from error
        return text

    def _split(self, line, example, file, number):
        """Return the split of a line by its field, or by the hash of its texts."""
        has_split = _is_present(line, SPLIT)
        if has_split != self._has_split_field or (has_split and line[SPLIT] not in SPLITS):
            raise ValueError(
                f"`path` must have a 'split' of {', '.join(SPLITS)} in each line, or in none. "
                f"Received: {file.name}, line {number}: {line.get(SPLIT)!r}."
            )
        return line[SPLIT] if has_split else assign_split(content_digest("\0".join(example.values()).encode()))


def _find_json_lines(folder):
    return [path for end in JSON_LINES for path in folder.rglob(f"*{end}")]


def _parse(text, file, number):
    try:
        line = json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"`path` must hold JSON lines in UTF-8. Received: {file}, line {number}: {error}.") from error
    if not isinstance(line, dict):
        raise ValueError(f"`path` must hold JSON objects. Received: {file}, line {number}: {type(line).__name__}.")
    return line


def _is_present(line, name):
    value = line.get(name)
    return value is not None and value == value  # NaN is not equal to itself


def _field_names(fields):
    return [name for field in fields for name in field.split("+")]


def _coprime_step(count):
    """Return an integer near 0.618 * count that is coprime to `count`."""
    return next(step for step in itertools.count(round(0.618 * count)) if math.gcd(step, max(count, 1)) == 1)
