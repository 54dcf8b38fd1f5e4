"""The table of KerasHub's families in docs/converting.md: `python -m docs.tables.families` prints it.

With `--write` the table goes to the page. A tiny model of each family with random weights is made sparse with a window
as long as the sequence. Where something is replaced, the model is called and compared with the dense one.
"""

import re
import sys
import warnings
from typing import NamedTuple

import keras
import numpy as np

from docs.tables.hub_models import LENGTH, MODELS, families, inputs_of, model_of
from tests.pages import DOCS, markdown_table, write_between
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import LocalAttention

PAGE = DOCS / "converting.md"
MARKS = "<!-- families -->", "<!-- /families -->"
COLUMNS = ("families", "replaced", "not replaced, with the reason in the report")
BOUND = 1e-4  # of the largest result; rounding errors grow through the layers of DepthAnything to 1e-5
# What reasons of the report have in common, and how the table says it.
REASONS = {
    "is neither a keras.layers.MultiHeadAttention": "other classes",
    "overrides the computation": "subclasses that compute something else",
    "learned relative positions": "scores of learned relative positions",
    "at learned positions": "keys at learned positions",
    "are those of images": "rotary positions of images",
    "those of image patches": "rotary positions of image patches",
    "a text and an image at once": "attention to a text and an image at once",
    "of a smaller image": "keys of a smaller image",
    "its model computes": "rotary positions that the model computes",
    "two sequences at once": "attention to two sequences at once",
    "scale per channel": "a learned scale per channel",
    "attends to another sequence": "attention to another sequence",
    "other layers read its keys": "keys and values that other layers read",
    "reads keys and values of another layer": "keys and values of another layer",
    "is bidirectional over images and prompts": "attention both ways to images and prompts",
    "is bidirectional over images": "attention both ways to images",
    "is bidirectional": "attention both ways",
    "no attention found": "no attention",
}


class Outcome(NamedTuple):
    """What becomes of the attention of a model."""

    replaced: tuple[str, ...]  # names of classes
    reasons: tuple[str, ...]  # why others are not replaced, as the table says it


def outcome(label: str) -> Outcome:
    """Return what becomes of the attention of a model of `MODELS`, which must keep its results."""
    dense, lines = model_of(label), []

    def make_layer(attention):
        return LocalAttention(**arguments_of(attention, window=4 * LENGTH))  # images have more tokens

    try:
        sparse = replace_attention(dense, make_layer, print_fn=lines.append)
    except ValueError as error:
        return Outcome((), _reasons(str(error)))
    if not (found := difference(dense, sparse)) < BOUND:
        raise ValueError(f"`{label}` must have the same results with sparse attention. Received: {found:.0e} off.")
    replaced = re.findall(r"^replaced .*: (\w+) by", lines[0], flags=re.MULTILINE)
    return Outcome(tuple(sorted(set(replaced))), _reasons(lines[0]))


def _reasons(report):
    """Return why attention is not replaced, by the lines of a report."""
    found = []
    for line in re.findall(r"^(?:skipped .*|no attention found)$", report, flags=re.MULTILINE):
        found.append(next((words for part, words in REASONS.items() if part in line), line))
    return tuple(sorted(set(found)))


def difference(dense: keras.Model, sparse: keras.Model) -> float:
    """Return the largest difference of two models' results for tokens, in parts of the largest result."""
    inputs = inputs_of(dense)
    numbers = (keras.tree.flatten(each(inputs)) for each in (dense, dense, sparse))
    outputs = ([keras.ops.convert_to_numpy(x).astype("float32") for x in each] for each in numbers)
    # Models of images may draw random numbers: outputs that a second call repeats are compared.
    results = [(x, y) for x, repeated, y in zip(*outputs, strict=True) if (x == repeated).all()]
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    if mask is not None:
        results = [(x[mask == 1], y[mask == 1]) if x.shape[:2] == mask.shape else (x, y) for x, y in results]
    return float(max(np.abs(x - y).max() / np.abs(x).max() for x, y in results))


def table() -> str:
    names = families()
    rows: dict[Outcome, list[str]] = {}
    for label in MODELS:
        family, *option = label.split(" (")
        rows.setdefault(outcome(label), []).append(" (".join(["/".join(names[family]), *option]))
    return markdown_table(
        [COLUMNS, *((", ".join(labels), *cells(found)) for found, labels in sorted(rows.items(), key=_order))]
    )


def cells(found):
    return [", ".join(values) or "-" for values in found]


def _order(row):
    """Return what rows are sorted by: those without attention last, before them those that are not replaced at all."""
    found, _ = row
    return "no attention" in found.reasons, not found.replaced, found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    text = table()
    print(text)
    if "--write" in sys.argv[1:]:
        write_between(PAGE, MARKS, text)
