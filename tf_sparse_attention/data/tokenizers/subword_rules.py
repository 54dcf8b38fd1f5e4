"""Words, escapes and vocabulary files of subword tokenizers, as in tensor2tensor.

A word is a maximal run of alphanumeric characters (Unicode categories L and N), or of other characters. Encoding drops
a single space between two words, and decoding restores it. Encoded words end in "_". A backslash, an underscore and
characters that the vocabulary lacks are encoded as "\\\\\\\\", "\\\\u" and "\\\\NUMBER;".
"""

import functools
import os
import pathlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence

from tf_sparse_attention.atomic_files import atomic_file

ESCAPES = "\\_u;0123456789"
UNDEFINED = "\u3013"  # replaces invalid code points
# Runs of characters for which `str.isalnum` is True (\w without the underscore), or of other characters.
WORDS = re.compile(r"[^\W_]+|[\W_]+")
_ESCAPED = re.compile(r"\\(?:u|\\|([0-9]+);)")


def split_words(text: str) -> list[str]:
    """Split text into words."""
    words = WORDS.findall(text)
    # A single space at either end of the text is a word.
    return words[:1] + [word for word in words[1:-1] if word != " "] + words[1:][-1:]


class Escaping(dict):
    """Table for `str.translate` that escapes the characters outside an alphabet.

    Args:
        alphabet: characters that need no escape sequence.
    """

    def __init__(self, alphabet: Iterable[str]) -> None:
        super().__init__({ord(character): character for character in alphabet if character != "\n"})
        self[ord("\\")], self[ord("_")] = "\\\\", "\\u"

    def __missing__(self, code: int) -> str:
        return f"\\{code};"


def unescape(word: str) -> str:
    """Undo `Escaping`."""
    return _ESCAPED.sub(_character, word)


def _character(match):
    if match[1] is None:
        return "_" if match[0] == "\\u" else "\\"
    code = int(match[1]) if len(match[1]) < 9 else sys.maxunicode + 1
    # UTF-8 cannot encode a lone surrogate.
    return chr(code) if code <= sys.maxunicode and not 0xD800 <= code <= 0xDFFF else UNDEFINED


def join_words(words: Iterable[str]) -> str:
    """Join words to text, with a space between consecutive alphanumeric words."""
    pieces, previous = [], False
    for word in words:
        is_alphanumeric = word[0].isalnum()
        pieces += [" ", word] if previous and is_alphanumeric else [word]
        previous = is_alphanumeric
    return "".join(pieces)


@functools.cache
def alphanumeric_class() -> str:
    """Return a character class of letters and numbers for TensorFlow regular expressions.

    The class lists code points, because TensorFlow and Python may use different versions of Unicode.
    """
    ranges, first = [], None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code))[0] in "LN"
        if inside and first is None:
            first = code
        if not inside and first is not None:
            ranges.append(f"\\x{{{first:x}}}-\\x{{{code - 1:x}}}")
            first = None
    return f"[{''.join(ranges)}]"


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
