"""Prints how far the library is from the published numbers: python -m tests.golden_table (make goldens).

Runs the tests that compare with goldens, and keeps count of every comparison they make.
"""

import collections
import sys
from pathlib import Path

import numpy as np
import pytest

FILES = sorted(Path(__file__).parent.rglob("test_*goldens.py"))
# Of other files the tests that compare with published numbers.
MORE = (
    "optimizers/test_adafactor.py::test_every_step_equals_the_published_one",
    "optimizers/test_adagrad.py::test_every_step_equals_the_published_one",
    "ops/test_word_clusters.py::test_the_embedding_and_its_gradients_equal_the_published_ones",
    "ops/test_word_clusters.py::test_the_loss_its_gradients_and_all_probabilities_equal_the_published_ones",
)


class Table:
    """A plugin of pytest that watches `np.testing.assert_allclose`."""

    def __init__(self):
        self.rows = collections.defaultdict(lambda: {"cases": set(), "numbers": 0, "error": 0.0, "share": 0.0})
        self._compare, self._row = np.testing.assert_allclose, None

    def pytest_runtest_call(self, item):
        path = item.nodeid.partition("::")[0]
        self._row = self.rows[path]
        self._row["cases"].add(item.nodeid)
        np.testing.assert_allclose = self._watch

    def pytest_runtest_teardown(self, item):
        np.testing.assert_allclose = self._compare

    def _watch(self, actual, desired, rtol=1e-7, atol=0.0, **options):
        self._compare(actual, desired, rtol=rtol, atol=atol, **options)
        actual, desired = (np.asarray(x, "float64") for x in (actual, desired))
        error = np.abs(actual - desired)
        if error.size:
            self._row["numbers"] += error.size
            self._row["error"] = max(self._row["error"], float(error.max()))
            self._row["share"] = max(
                self._row["share"], float((error / (atol + rtol * np.abs(desired) + 1e-300)).max())
            )

    def text(self):
        """Returns the table as Markdown."""
        lines = ["| file of tests | tests | numbers | largest error | largest share of its tolerance |"]
        lines.append("|---|---|---|---|---|")
        for path, row in sorted(self.rows.items()):
            figures = f"{len(row['cases'])} | {row['numbers']:,} | {row['error']:.1e} | {row['share']:.2f}"
            lines.append(f"| {path} | {figures} |")
        rows = self.rows.values()
        tests, numbers = sum(len(row["cases"]) for row in rows), sum(row["numbers"] for row in rows)
        worst = [max((row[name] for row in rows), default=0.0) for name in ("error", "share")]
        lines.append(f"| all | {tests} | {numbers:,} | {worst[0]:.1e} | {worst[1]:.2f} |")
        return "\n".join(lines)


def main():
    """Runs the tests and prints the table; the exit status is that of pytest."""
    table = Table()
    paths = [str(path) for path in FILES] + [str(Path(__file__).parent / name) for name in MORE]
    status = pytest.main(["-q", "-p", "no:xdist", *paths], plugins=[table])
    print(table.text())
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
