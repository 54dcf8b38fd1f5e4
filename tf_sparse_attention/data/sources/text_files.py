"""Reads text files: each file of a folder is a document, and a single file is cut into three."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable

from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    DataFile,
    existing_path,
    fingerprint_files,
    list_files,
    nonempty_splits,
    open_content,
    readable_name,
    scan_file,
)
from tf_sparse_attention.data.sources.readers import ListReader

TEXT = "text"  # field of the examples
JSON_LINES = (".jsonl", ".jsonl.gz")
JSON_NAMES = (".jsonl", ".ndjson", ".json")
LONGEST_LINE = 1 << 24  # maximum bytes that are parsed to recognize JSON lines


def open_text_files(path: str | os.PathLike | None, pattern: str = "**/*.txt") -> ListReader:
    """Open a folder of text files, or one text file.

    An example is {"text": bytes}. The first rule that applies decides the splits:

    - `path` is a file: its first 90 % of bytes are for training, the next 5 % for validation, the last 5 % for testing,
      one example each. For 10^8 bytes this is the usual split of enwik8 and text8. A cut can be inside a character.
    - `path` has folders named train, validation or test: these are the splits.
    - `path` holds 3 or more files of different content: they are split by the hash of their content (about 90/5/5).
      No split is empty, and equal files are in one split; see `file_splits.nonempty_splits`.
    - `path` holds one or two different contents: each file is cut like a single file.

    Files NAME.gz are decompressed, and `pattern` matches them too: "**/*.txt" also matches NAME.txt.gz. Hidden and
    blank files are left out. Files are in the order of their content hashes, so parts of a split are random samples.

    Warnings report missing folders of splits, files outside of them, and files that `pattern` does not match.

    Args:
        path: the folder or file.
        pattern: glob pattern of the documents, relative to `path` or to its folders train, validation and test.

    Raises:
        ValueError: If `path` does not exist or has no text, or a file is not UTF-8, is damaged or has JSON lines.
    """
    root = existing_path(path, "folder or file")
    if root.is_file():
        splits = _cut(_list_texts(root.parent, [root]))
    else:
        others = str(pathlib.PurePosixPath(pattern).with_name("*"))
        listed = list_files(root, lambda folder: _match(folder, pattern), others, f"named {pattern}")
        splits = {split: _list_texts(root, members) for split, members in listed.items()}
        if "" in splits:
            files = splits[""]
            splits = nonempty_splits(files) if len({file.digest for file in files}) >= len(SPLITS) else _cut(files)
    if not any(splits.values()):
        has_json = root.is_dir() and any(path.name.endswith(JSON_LINES) for path in root.rglob("*"))
        hint = " For JSON lines, set `text_field` to the field with the text." if has_json else ""
        raise ValueError(
            f"`path` must hold text files that match `pattern`.{hint} Received: path={path}, pattern={pattern}."
        )
    for document in {file.path for members in splits.values() for file in members}:
        _refuse_json_lines(document)
    name = f"text_folder/{readable_name(root, 'text')}_{fingerprint_files(splits)}"
    return ListReader(name, name, splits, lambda file: {TEXT: file.read()})


def list_texts(folder: pathlib.Path, paths: Iterable[pathlib.Path], skip_invalid: bool = False) -> list[DataFile]:
    """List the files with text in a folder, sorted by name; with `skip_invalid`, files that are not UTF-8 are left out.

    Raises:
        ValueError: If a file is not UTF-8 and `skip_invalid` is False.
    """
    files = []
    for path in paths:
        scan = scan_file(path)
        if scan.invalid_byte is not None and not scan.is_blank and not skip_invalid:
            raise ValueError(f"`path` must hold UTF-8 text. Received: {path}, invalid at byte {scan.invalid_byte}.")
        if not scan.is_blank and scan.invalid_byte is None:
            files.append(DataFile(path.relative_to(folder).as_posix(), path, scan.digest))
    return sorted(files, key=lambda file: file.name)


def _list_texts(folder, paths):
    return sorted(list_texts(folder, paths), key=lambda file: (file.digest, file.name))


def _match(folder, pattern):
    return [*folder.glob(pattern), *folder.glob(f"{pattern}.gz")]


def _cut(files):
    """Cut each file at 90 and 95 % of its bytes; parts without bytes are left out."""
    splits: dict[str, list[DataFile]] = {split: [] for split in SPLITS}
    for file in files:
        size = scan_file(file.path).size
        # Integers: 0.95 * size is not exact.
        bounds = (0, size * 90 // 100, size * 95 // 100, size)
        for split, begin, end in zip(SPLITS, bounds, bounds[1:], strict=False):
            if begin < end:
                splits[split].append(dataclasses.replace(file, begin=begin, end=end))
    return splits


def _refuse_json_lines(path):
    """Raise an error for a file of JSON lines, which is not plain text."""
    if not path.name.removesuffix(".gz").endswith(JSON_NAMES):
        return
    with open_content(path) as file:
        first = b""
        while not first.strip():  # the file is not blank
            first = file.readline(LONGEST_LINE)
    try:
        line = json.loads(first)
    except ValueError:  # text, or an object over several lines
        return
    if isinstance(line, dict):
        raise ValueError(
            "`text_field` must be the field with the text of JSON lines (in the trainers: --config.data.text_field). "
            f"Received: text_field=None, for {path} with the fields {', '.join(map(repr, line)) or 'none'}."
        )
