"""Splits text into words and escapes characters outside the vocabulary, as tensor2tensor does.

A word is a maximal run of alphanumeric characters (Unicode categories L and N), or of other characters. Encoding drops
a single space between two words, and decoding restores it. Encoded words end in "_". A backslash, an underscore and
characters that the vocabulary lacks are encoded as "\\\\\\\\", "\\\\u" and "\\\\NUMBER;".
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

ESCAPES = "\\_u;0123456789"
UNDEFINED = "\u3013"  # replaces invalid code points
# Runs of characters for which `str.isalnum` is True (\w without the underscore), or of other characters.
WORDS = re.compile(r"[^\W_]+|[\W_]+")
_ESCAPED = re.compile(r"\\(?:u|\\|([0-9]+);)")


def split_words(text: str) -> list[str]:
    """Split a text into words."""
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

    def __missing__(self, code):
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
    """Join words to a text, with a space between consecutive alphanumeric words."""
    pieces, previous = [], False
    for word in words:
        is_alphanumeric = word[0].isalnum()
        pieces += [" ", word] if previous and is_alphanumeric else [word]
        previous = is_alphanumeric
    return "".join(pieces)


@functools.cache
def alphanumeric_class() -> str:
    """Return a character class of letters and numbers for regular expressions of TensorFlow.

    It lists code points, because TensorFlow and Python may use different versions of Unicode.
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
