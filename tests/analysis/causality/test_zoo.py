"""The zoo of docs/audit.md: what its table says of each leak is what the audit says."""

import re

import pytest

from tests.pages import DOCS, blocks
from tf_sparse_attention.analysis import causality_report

TEXT = (DOCS / "audit.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)(?:\(\))?` \| (\w+) \| (\w+) \| (\w+) \| (\w+) \|$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def zoo():
    names = {}
    for block in blocks(TEXT, "python"):
        exec(block, names)  # the page is the repository's own
    return names


def test_the_table_has_every_leak_of_the_page():
    assert len({name for name, *_ in ROWS}) == 7 and len(ROWS) == 9


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:2]))
def test_the_audit_says_what_the_page_says(row, zoo):
    name, training, *expected = row
    target = zoo[name]() if name == "DropsMask" else zoo[name]
    options = {"sequence_length": 16, "hidden_dim": 8, "num_cuts": 6, "training": training == "True"}
    full, quick = causality_report(target, **options), causality_report(target, **options, quick=True)
    leaks = [leak.check for leak in full.leaks]
    found = ["gradient" in leaks, "perturbation" in leaks, bool(quick.leaks)]
    assert ["leaks" if leak else "passes" for leak in found] == expected
    assert not full.powerless and not quick.powerless
