"""The benchmark of long contexts, with short ones."""

import sys

import pytest

from benchmarks import long_context
from tf_sparse_attention.patterns import First, RetrievedClusters, Window


@pytest.mark.full
def test_a_long_context_has_time_and_bytes_per_pattern(monkeypatch, capsys):
    options = ["--lengths=1024", "--steps=2", "--prefill=1024", "--patterns", "dense", "clusters", "clusters, nodes"]
    monkeypatch.setattr(sys, "argv", ["", *options])
    long_context.main()
    rows = [
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 1,024")
    ]
    assert [row[1] for row in rows] == ["dense", "clusters", "clusters, nodes"]
    assert all(float(number) > 0 for row in rows for number in row[2:])


def test_a_token_reads_rows_of_keys_values_and_means():
    pattern = Window(64) | First(4) | RetrievedClusters(55)
    selected, means, slots = 2 * 9 * 56 * 8, 3 * (64 + 2 * 1024), 3 * 8192 // 64
    assert long_context.rows_read(pattern, 8192, 9, 3) == 2 * 3 * (64 + 4) + selected + means + slots
    assert long_context.rows_read(None, 8192, 9, 3) == 2 * 3 * 8192
