"""Small real classification task: predict the book of a passage. `python -m benchmarks.passages --help`

Writes JSON lines with "text", "label" (the file of the book) and "split". Each book has evenly spaced passages of equal
size without overlap. The last tenth of a book is the test split, the tenth before it the validation split. Text between
passages is not used.

    python -m benchmarks.passages --books=FOLDER --output=runs/passages.jsonl
"""

import argparse
import json
import pathlib
from collections.abc import Iterator

from tf_sparse_attention.atomic_files import atomic_file


def passages(text: str, size: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield passages of a text with the names of their splits.

    Args:
        text: text of a book.
        size: bytes per passage; incomplete characters at its ends are dropped.
        count: maximal number of passages.
    """
    content = text.encode("utf-8")
    count = min(count, len(content) // size)
    step = len(content) // max(count, 1)
    for number in range(count):
        begin = number * step
        split = "train" if number < 0.8 * count else "validation" if number < 0.9 * count else "test"
        yield content[begin : begin + size].decode("utf-8", errors="ignore"), split


def write(books: str, output: str, size: int, count: int) -> dict[str, int]:
    """Write the passages of all books in a folder, and return the number of passages per split."""
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
    parser.add_argument("--books", required=True, help="folder of books, NAME.txt")
    parser.add_argument("--output", required=True, help="output file, NAME.jsonl")
    parser.add_argument("--size", type=int, default=2048, help="bytes per passage")
    parser.add_argument("--count", type=int, default=160, help="maximal number of passages per book")
    arguments = parser.parse_args()
    print(write(arguments.books, arguments.output, arguments.size, arguments.count))


if __name__ == "__main__":
    main()
