"""A real small task of classification: which book a passage is from. `python -m benchmarks.passages --help`

Writes JSON lines with "text", "label", the file of the book, and "split": of each book passages of equal size, evenly
spread and not overlapping; those of its last tenth are for testing, of the tenth before for validation. What is between
two passages is used by none, and no passage of one split is from the part of another.

    python -m benchmarks.passages --books=FOLDER --output=runs/passages.jsonl
"""

import argparse
import json
import pathlib
from collections.abc import Iterator

from tf_sparse_attention.atomic_files import atomic_file


def passages(text: str, size: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield passages of a text with the name of their split.

    Args:
        text: of a book.
        size: bytes of a passage, whole characters; the longest there is where the text has fewer than `count`.
        count: of the passages of a book.
    """
    content = text.encode("utf-8")
    count = min(count, len(content) // size)
    step = len(content) // max(count, 1)
    for number in range(count):
        begin = number * step
        split = "train" if number < 0.8 * count else "validation" if number < 0.9 * count else "test"
        yield content[begin : begin + size].decode("utf-8", errors="ignore"), split


def write(books: str, output: str, size: int, count: int) -> dict[str, int]:
    """Write the passages of all books of a folder, and returns how many each split has."""
    lines, counts = [], {"train": 0, "validation": 0, "test": 0}
    for path in sorted(pathlib.Path(books).glob("*.txt")):
        for text, split in passages(path.read_text(encoding="utf-8"), size, count):
            lines.append(json.dumps({"text": text, "label": path.stem, "split": split}, ensure_ascii=False))
            counts[split] += 1
    if not lines:
        raise ValueError(f"`books` must be a folder of files NAME.txt. Received: books={books}.")
    pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(pathlib.Path(output)) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True, help="folder of books, NAME.txt each")
    parser.add_argument("--output", required=True, help="file to write, NAME.jsonl")
    parser.add_argument("--size", type=int, default=2048, help="bytes of a passage")
    parser.add_argument("--count", type=int, default=160, help="passages of a book")
    arguments = parser.parse_args()
    print(write(arguments.books, arguments.output, arguments.size, arguments.count))


if __name__ == "__main__":
    main()
