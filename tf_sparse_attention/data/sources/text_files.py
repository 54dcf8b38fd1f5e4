"""Any folder of text files, or one long text file, as a TFDS data set."""

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    TextFile,
    check_utf8,
    content_digest,
    fingerprint_files,
    json_line_files,
    list_text_files,
    matching,
    nonempty_splits,
    read_content,
)
from tf_sparse_attention.data.sources.left_out import warn_of_files, warn_of_missing_splits

tfds: Any = import_tfds()
JSON_NAMES = (".jsonl", ".ndjson", ".json")  # how files of JSON lines are called


@dataclasses.dataclass
class TextFolderConfig(tfds.core.BuilderConfig):
    """Configuration of `TextFolder`: the folder (or file) and the pattern of its files."""

    path: str = ""
    pattern: str = "**/*.txt"


class TextFolder(tfds.core.GeneratorBasedBuilder):
    """Text files of a folder, one example {"text", "path"} each, or one file cut into three.

    The splits are, in this order of preference:

    - `path` is a file: its first 90 % of bytes are for training, the next 5 % for validation, the last 5 % for testing,
      one example each. For 10^8 bytes this is the usual split of enwik8 and text8. A cut may fall inside a character,
      since byte-level figures are stated for exactly these bytes.
    - `path` has folders named train, validation or test: these are the splits.
    - `path` holds 3 or more files of different content: the hash of each file's content decides (about 90/5/5), with at
      least one file in each split and equal files never in two; see `text_files.nonempty_splits`.
    - `path` holds one or two: each is cut as a single file is, so that there is something in every split.

    Files NAME.gz are read as what is compressed in them; a pattern matches them too, "**/*.txt" also NAME.txt.gz.

    A warning says which splits have no folder where others have one, and which files are in none of these folders or
    beside the documents with a name that the pattern leaves out; nothing is said of hidden files.

    The configuration is named after the folder and the hash of every name, content, split and cut in it. So a changed
    folder is prepared again, and what was prepared before, or split by another rule, is never taken for the new one.

    Args:
        path: the folder, or the file.
        pattern: glob pattern of the documents, relative to `path` or to its folders train, validation and test.
        data_dir, version: as in `tfds.core.DatasetBuilder`.
        config: `TextFolderConfig` whose `path` and `pattern` take the place of the arguments; its name is not used.

    Raises:
        ValueError: If `path` does not exist or holds no text, if a file in it is not UTF-8 or has JSON lines, or
            `config` is only a name.

    Example:

    >>> builder = TextFolder(path="books", data_dir="/tmp/data")
    >>> builder.download_and_prepare()
    >>> builder.as_dataset(split="train")
    """

    name = "text_folder"
    VERSION = tfds.core.Version("1.0.0")

    def __init__(
        self,
        *,
        path: str | os.PathLike | None = None,
        pattern: str = "**/*.txt",
        data_dir: str | os.PathLike | None = None,
        config: Any = None,
        version: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, TextFolderConfig):
            raise ValueError(f"`config` must be a TextFolderConfig. Received: config={config!r}.")
        path, pattern = (path, pattern) if config is None else (config.path, config.pattern)
        if path is None or not pathlib.Path(path).expanduser().exists():
            raise ValueError(f"`path` must be an existing folder or file. Received: path={path}.")
        path = pathlib.Path(path).expanduser().resolve()
        self._splits = _splits_of_file(path) if path.is_file() else _splits_of_folder(path, pattern)
        if not self._splits:
            hint = (
                " Of JSON lines name the field with the text, `text_field`."
                if path.is_dir() and json_line_files(path)
                else ""
            )
            raise ValueError(
                f"`path` must hold text files that match `pattern`.{hint} Received: path={path}, pattern={pattern}."
            )
        for file in {part.file for parts in self._splits.values() for part in parts}:
            _refuse_json_lines(file)
        # The name always comes from what the folder holds now, also when a builder is unpickled later.
        super().__init__(data_dir=data_dir, config=self._config_of(path, pattern), version=version)

    def _config_of(self, path, pattern):
        # A file's name starts with its split here: moving it to another split changes the fingerprint.
        files = [
            dataclasses.replace(part.file, name=f"{split}[{part.begin}:{part.end}]/{part.file.name}")
            for split, parts in self._splits.items()
            for part in parts
        ]
        name = f"{re.sub('[^A-Za-z0-9]+', '_', path.name).strip('_') or 'text'}_{fingerprint_files(files)}"
        return TextFolderConfig(
            name=name, version=self.VERSION, description=f"Text of {path}.", path=str(path), pattern=pattern
        )

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Text files of a folder.",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "path": tfds.features.Text()}),
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # Nothing is downloaded.
        return {split: self._generate_examples(parts) for split, parts in self._splits.items()}

    def _generate_examples(self, parts):
        for part in parts:
            yield part.file.name, {"text": part.file.read()[part.begin : part.end], "path": part.file.name}


@dataclasses.dataclass(frozen=True)
class _Part:
    """Bytes `begin` to `end` of a file; an `end` of None is its end."""

    file: TextFile
    begin: int = 0
    end: int | None = None


def _splits_of_file(path):
    content = read_content(path)
    if not content.strip():
        return {}
    check_utf8(content, path)
    return _without_empty(_cut(TextFile(path.name, path, content_digest(content)), len(content)))


def _refuse_json_lines(file):
    """Raise a `ValueError` for a file of JSON lines, which would be read as text with its braces and quotes."""
    if not file.path.name.removesuffix(".gz").endswith(JSON_NAMES):
        return
    begin = file.read().lstrip().partition(b"\n")[0]
    try:
        line = json.loads(begin)
    except ValueError:  # text, or an object of several lines
        return
    if isinstance(line, dict):
        raise ValueError(
            "`text_field` must be the field with the text of JSON lines, for the trainers --config.data.text_field. "
            f"Received: text_field=None, for {file.path} with the fields {', '.join(map(repr, line)) or 'none'}."
        )


def _splits_of_folder(path, pattern):
    folders = {split: path / split for split in SPLITS if (path / split).is_dir()}
    _warn_of_left_out(path, folders, pattern)
    if folders:
        splits = {split: list_text_files(folder, matching(folder, pattern)) for split, folder in folders.items()}
        return _without_empty({split: [_Part(file) for file in files] for split, files in splits.items()})
    files = list_text_files(path, matching(path, pattern))
    if len({file.digest for file in files}) < len(SPLITS):
        # Copies are cut at the same bytes, so here too no text is in two splits.
        cuts = [_cut(file, len(file.read())) for file in files]
        return _without_empty({split: [part for cut in cuts for part in cut[split]] for split in SPLITS})
    return {split: [_Part(file) for file in files] for split, files in nonempty_splits(files).items()}


def _warn_of_left_out(path, folders, pattern):
    """Logs which splits a folder lacks, and which of its files are in no part of it or do not match the pattern."""
    warn_of_missing_splits(path, folders)
    matched = matching(path, pattern)
    if folders:
        outside = [file for file in matched if file.relative_to(path).parts[0] not in folders]
        warn_of_files(path, outside, f"not in {', '.join(folders)}")
        matched = {file for folder in folders.values() for file in matching(folder, pattern)}
    # Files of the same folders, so that "*.txt" does not look at what is below.
    beside = str(pathlib.PurePosixPath(pattern).with_name("*"))
    found = {file for folder in folders.values() or [path] for file in folder.glob(beside)}
    warn_of_files(path, found - matched, f"not named {pattern}")


def _cut(file, length):
    """Returns {split: list of the one `_Part` of a file of so many bytes}; in a file below 20 bytes some are empty."""
    # Whole numbers, since 0.95 * length is not exact in floating point.
    ninety, ninety_five = length * 90 // 100, length * 95 // 100
    return {
        "train": [_Part(file, 0, ninety)],
        "validation": [_Part(file, ninety, ninety_five)],
        "test": [_Part(file, ninety_five, length)],
    }


def _without_empty(splits):
    """Drops parts without bytes, then splits without parts: TFDS cannot write those."""
    splits = {split: [part for part in parts if part.begin != part.end] for split, parts in splits.items()}
    return {split: parts for split, parts in splits.items() if parts}
