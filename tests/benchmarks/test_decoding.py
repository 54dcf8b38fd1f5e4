"""The benchmark of decoding, at sizes that take seconds."""

import pytest

from benchmarks import decoding


@pytest.mark.large
def test_both_tables_have_their_rows():
    arguments = ["--positions", "8", "12", "--keys", "4", "--steps", "2", "--repeats", "1", "--layers", "1"]
    given = decoding.parser().parse_args([*arguments, "--heads", "2"])
    headings, *rows = decoding.by_position(given, prompt=16)
    assert [row[0] for row in rows] == list(decoding.KINDS)
    assert {len(row) for row in rows} == {len(headings)}
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
    # A row, a block, two heads of keys and values of 64 numbers each, on 14 places.
    assert dict(zip(headings, rows[-1], strict=True))["cache MiB"] == f"{14 * 2 * 2 * 64 * 4 / 2**20:.2f}"
    headings, *rows = decoding.by_size(given)
    assert [row[:2] for row in rows] == [["4", "local"], ["4", "local and routed"]]
    assert decoding.as_markdown(headings, *rows).count("\n") == 3
