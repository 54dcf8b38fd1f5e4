"""Which patterns can be written as LiteRT and ONNX: `python -m tests.conversion_table` prints a table.

Each model is exported and run, and its answers are compared with those of Keras; with `--write` the table goes to
docs/portable.md.
"""

import pathlib
import re
import sys
import tempfile
import warnings

from tests.export.portable_cases import CASES, decode_error, export, make, score_error

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "portable.md"
MARKS = "<!-- conversions: begin -->", "<!-- conversions: end -->"
ERRORS = {"score": score_error, "decode": decode_error}
COLUMNS = [(target, signature) for target in ("LiteRT", "ONNX") for signature in ERRORS]


def cell(model, target, signature):
    """Returns the largest error of a file, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = export(target, model, pathlib.Path(folder), (signature,))
        except ValueError as refusal:
            return reason_of(str(refusal))
        return f"{ERRORS[signature](model, run):.0e}"


def reason_of(message):
    """Returns the part of an exporter's message that says why."""
    for pattern in (r"the reason: (.*)\.$", r"with a cache: (.*?)\. `signatures", r"Received: (.*)\.$"):
        if found := re.search(pattern, message):
            return found[1]
    return message


def table():
    """Returns the table as Markdown."""
    lines = ["| model | " + " | ".join(f"{target} `{signature}`" for target, signature in COLUMNS) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for name, settings in CASES.items():
        model = make(**settings)
        cells = [cell(model, target, signature) for target, signature in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def write(text):
    """Puts the table between the marks of docs/portable.md."""
    begin, end = MARKS
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    made = table()
    print(made)
    if "--write" in sys.argv:
        write(made)
