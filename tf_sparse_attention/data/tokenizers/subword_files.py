"""Vocabulary files of tensor2tensor: one quoted subword per line."""

import os
import pathlib
from collections.abc import Sequence

from tf_sparse_attention.atomic_files import atomic_file


def read_vocabulary(path: str | os.PathLike) -> list[str]:
    """Read the subwords of a vocabulary file, without the quotes around them.

    Raises:
        ValueError: If the file is missing, empty or not UTF-8.
    """
    return [_strip_quotes(line.rstrip()) for line in read_lines(path)]


def read_lines(path: str | os.PathLike) -> list[str]:
    """Read the lines of a vocabulary file.

    Raises:
        ValueError: If the file is missing, empty or not UTF-8.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"`path` must be a vocabulary file. Received: path={path}.")
    try:
        content = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"`path` must be a vocabulary file in UTF-8. Received: {path.name}, where {error}.") from error
    # Not `splitlines`: subwords can have other characters that it treats as line breaks.
    lines = content.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise ValueError(f"`path` must be a vocabulary file with one piece per line. Received: empty {path.name}.")
    return lines


def _strip_quotes(line):
    in_quotes = len(line) > 1 and line[0] == line[-1] and line[0] in "'\""
    return line[1:-1] if in_quotes else line


def write_vocabulary(vocabulary: Sequence[str], path: str | os.PathLike) -> None:
    """Write subwords to a file atomically, one per line, in quotes.

    Raises:
        ValueError: If a subword has a newline.
    """
    invalid = [subword for subword in vocabulary if "\n" in subword]
    if invalid:
        raise ValueError(f"`vocabulary` must not have a newline in a subword. Received: {invalid[0]!r}.")
    path = pathlib.Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"'{subword}'\n" for subword in vocabulary), encoding="utf-8", newline="")
