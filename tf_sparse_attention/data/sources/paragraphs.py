"""Parts of texts that belong together: their paragraphs, one to one, without what closes one of them."""

import re
from collections.abc import Sequence

UNITS = ("document", "paragraph")


def cut_at(text: str, end_line: str | None) -> str:
    """Returns a text up to the last line that is `end_line`, without it; None, or no such line: all of it."""
    if end_line is None:
        return text
    lines = text.split("\n")
    ends = [number for number, line in enumerate(lines) if line.strip() == end_line]
    return "\n".join(lines[: ends[-1]]).rstrip() if ends else text


def paired_paragraphs(texts: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Returns the paragraphs of some texts side by side, or None if they have different numbers of them.

    Args:
        texts: in which blank lines divide paragraphs.
    """
    sides = [[part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()] for text in texts]
    return list(zip(*sides, strict=True)) if len({len(side) for side in sides}) == 1 else None
