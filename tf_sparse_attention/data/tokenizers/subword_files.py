"""The vocabulary files of tensor2tensor: a subword a line, in quotes."""

import os
import pathlib
from collections.abc import Sequence

from tf_sparse_attention.atomic_files import atomic_file


def read_vocabulary(path: str | os.PathLike) -> list[str]:
    """Returns the subwords of a file, a list of `str`; quotes around them are removed.

    Raises:
        ValueError: if the file is not there, empty or not UTF-8.
    """
    return [_without_quotes(line.rstrip()) for line in read_lines(path)]


def read_lines(path: str | os.PathLike) -> list[str]:
    """Returns the lines of a vocabulary file, a list of `str`.

    Raises:
        ValueError: if the file is not there, empty or not UTF-8.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"`path` must be a vocabulary file. Received: path={path}.")
    try:
        content = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"`path` must be a vocabulary file in UTF-8. Received: {path.name}, where {error}.") from error
    # Lines end in "\n" alone: a subword may well be another of the characters that `splitlines` takes for an end.
    lines = content.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise ValueError(f"`path` must be a vocabulary file, a piece a line. Received: {path.name}, which is empty.")
    return lines


def _without_quotes(line):
    in_quotes = len(line) > 1 and line[0] == line[-1] and line[0] in "'\""
    return line[1:-1] if in_quotes else line


def write_vocabulary(vocabulary: Sequence[str], path: str | os.PathLike) -> None:
    """Writes subwords to a file atomically, one a line, in quotes.

    Raises:
        ValueError: if a subword has a newline, which no encoding of a text has.
    """
    if any("\n" in subword for subword in vocabulary):
        raise ValueError("`vocabulary` must have no newline in a subword, for a file of lines. Received: one that has.")
    path = pathlib.Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"'{subword}'\n" for subword in vocabulary), encoding="utf-8", newline="")
