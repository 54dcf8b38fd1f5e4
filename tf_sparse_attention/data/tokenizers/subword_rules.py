"""Splits text into words and escapes characters outside the vocabulary, as tensor2tensor does.

A word is a longest run of letters and numbers (Unicode categories L and N), or of anything else. A single space between
two words is left out and comes back in decoding. In a vocabulary a word ends in "_"; a backslash, an underscore and
characters that the vocabulary lacks are written as "\\\\\\\\", "\\\\u" and "\\\\NUMBER;".
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

ESCAPES = "\\_u;0123456789"
UNDEFINED = "\u3013"  # for an invalid code point
# Letters and numbers: what `str.isalnum` is true for, which is what \w has besides the underscore.
WORDS = re.compile(r"[^\W_]+|[\W_]+")
_ESCAPED = re.compile(r"\\(?:u|\\|([0-9]+);)")


def words_of(text: str) -> list[str]:
    """Returns the words of a text, a list of `str`."""
    words = WORDS.findall(text)
    # A space that is the first or the last word is not between two words, and is a word itself.
    return words[:1] + [word for word in words[1:-1] if word != " "] + words[1:][-1:]


class Escaping(dict):
    """A table for `str.translate` that writes a word in the characters of a vocabulary.

    Args:
        alphabet: its characters.
    """

    def __init__(self, alphabet: Iterable[str]) -> None:
        super().__init__({ord(character): character for character in alphabet if character != "\n"})
        self[ord("\\")], self[ord("_")] = "\\\\", "\\u"

    def __missing__(self, code):
        return f"\\{code};"


def unescape(word: str) -> str:
    """Returns a word as it was before `Escaping`."""
    return _ESCAPED.sub(_character, word)


def _character(match):
    if match[1] is None:
        return "_" if match[0] == "\\u" else "\\"
    code = int(match[1]) if len(match[1]) < 9 else sys.maxunicode + 1
    # A half of a pair of UTF-16 is no character: no text in UTF-8 could hold it.
    return chr(code) if code <= sys.maxunicode and not 0xD800 <= code <= 0xDFFF else UNDEFINED


def join_words(words: Iterable[str]) -> str:
    """Returns the text of words, with a space between two of letters and numbers."""
    pieces, previous = [], False
    for word in words:
        is_alphanumeric = word[0].isalnum()
        pieces += [" ", word] if previous and is_alphanumeric else [word]
        previous = is_alphanumeric
    return "".join(pieces)


@functools.cache
def alphanumeric_class() -> str:
    """Returns letters and numbers as a class of the regular expressions of TensorFlow, with its brackets.

    The ranges are written out: the Unicode tables of TensorFlow may be of another year than those of Python.
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
