"""The vocabulary files of tensor2tensor: a subword a line, in quotes."""

import os
import pathlib
import tempfile


def read_vocabulary(path):
    """Returns the subwords of a file, a list of `str`; quotes around them are taken off.

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
        raise ValueError(f"`path` must be a vocabulary file, a subword a line. Received: {path.name}, which is empty.")
    return [_without_quotes(line.rstrip()) for line in lines]


def _without_quotes(line):
    in_quotes = len(line) > 1 and line[0] == line[-1] and line[0] in "'\""
    return line[1:-1] if in_quotes else line


def write_vocabulary(vocabulary, path):
    """Writes subwords a line each, in quotes: beside the file, which then gets its name."""
    path = pathlib.Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"'{subword}'\n" for subword in vocabulary)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.incomplete-", dir=path.parent) as beside:
        written = pathlib.Path(beside) / path.name
        written.write_text(content, encoding="utf-8", newline="")
        os.replace(written, path)
