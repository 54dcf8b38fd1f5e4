"""Prints how far the library is from the published numbers: python -m docs.tables.goldens (make goldens).

Runs the tests that compare with goldens, and keeps count of every comparison they make, by the set of numbers. With
`--write` the table goes into docs/results.md, between its two marks.
"""

import collections
import sys

import numpy as np
import pytest

from tests import goldens
from tests.pages import DOCS, ROOT, write_between

TESTS = ROOT / "tests"
MARKS = "<!-- goldens: begin -->", "<!-- goldens: end -->"

FILES = sorted(TESTS.rglob("test_*goldens.py"))
# Of other files the tests that compare with published numbers, and the sets of those that do not read them by case.
MORE = {
    "optimizers/test_adafactor.py::test_every_step_equals_the_published_one": "routing_transformer/adafactor",
    "optimizers/test_adagrad.py::test_every_step_equals_the_published_one": None,
    "ops/test_adaptive_vocabulary.py::test_the_embedding_and_its_gradients_equal_the_published_ones": None,
    "ops/test_adaptive_vocabulary.py::test_the_loss_its_gradients_and_all_probabilities_equal_the_published_ones": None,
    "generation/test_samplers.py::test_the_nucleus_is_the_published_one": "routing_transformer/sampling",
    "generation/test_samplers.py::test_for_one_row_the_published_top_k_drops_its_threshold_and_is_our_k_less_1": (
        "routing_transformer/sampling"
    ),
    "generation/test_samplers.py::test_for_one_row_the_published_top_1_keeps_nothing_and_ours_keeps_the_best": (
        "routing_transformer/sampling"
    ),
    "generation/test_samplers.py::test_for_a_batch_the_published_top_k_takes_one_threshold_and_ours_keeps_k_a_row": (
        "routing_transformer/sampling"
    ),
    "analysis/test_divergence.py": None,
    "convert/hugging_face/test_encoder.py::test_states_are_those_of_torch": "hugging_face",
    "data/tokenizers/test_subword_training.py::test_the_published_builder_is_reproduced_byte_by_byte": None,
    "data/tokenizers/test_subword_tokenizer.py::test_every_string_has_the_published_ids": None,
    "data/tokenizers/test_subword_tokenizer.py::test_published_ids_decode_as_published": None,
    "data/tokenizers/test_subword_tokenizer.py::test_a_graph_gives_the_published_ids_and_texts": None,
}
# The counterpart of a published fault: an argument of this library, or an adapter in the tests.
SWITCHES = {
    "adafactor": '`matrix_view="last_two"`',
    "causality_leak": "count + 0.01, causal by rank",
    "clustered": "count + 0.01, causal by rank; padding marked by zero values (adapter)",
    "clustered_lsh": "count + 0.01, causal by rank",
    "clustered_strided": "count + 0.01, causal by rank; commitment weighed by 1e-4 (adapter)",
    "kmeans_ema": "counts of mixed heads (adapter)",
    "local_1d": "shifted table where not causal, padding marked by zero values (adapters)",
    "local_2d": "shifted table (adapter)",
    "misc": "epsilon of the divergence, scale of tables (adapters)",
    "mini_lm": "`reproduce_reference`, converted as checkpoints",
    "multihead": "`reproduce_reference`",
    "sampling": "threshold over the whole batch (adapter)",
    "strided": "zeros that fill the last block are seen, blocks with padding averaged (adapters)",
    "t2t_checkpoints": "`reproduce_reference`, converted",
}


class Table:
    """A plugin of pytest that watches comparisons of arrays."""

    def __init__(self):
        self.rows = collections.defaultdict(
            lambda: {"cases": set(), "tests": set(), "numbers": 0, "error": 0.0, "share": 0.0}
        )
        self._close, self._equal = np.testing.assert_allclose, np.testing.assert_array_equal
        self._set = self._test = None
        goldens.OBSERVERS.append(self._read)

    def _read(self, name, case):
        self._set, self._reads_cases = name, True
        self.rows[name]["cases"].add(case)

    def pytest_runtest_setup(self, item):
        path = item.nodeid.partition("::")[0].removeprefix("tests/")
        self._test, self._set = item.nodeid, MORE.get(f"{path}::{item.originalname}")
        self._reads_cases = False

    def pytest_runtest_call(self, item):
        np.testing.assert_allclose, np.testing.assert_array_equal = self._watch_close, self._watch_equal

    def pytest_runtest_teardown(self, item):
        np.testing.assert_allclose, np.testing.assert_array_equal = self._close, self._equal

    def _watch_close(self, actual, desired, rtol=1e-7, atol=0.0, **options):
        self._close(actual, desired, rtol=rtol, atol=atol, **options)
        actual, desired = (np.asarray(x, "float64") for x in (actual, desired))
        error = np.abs(actual - desired)
        self._note(error, atol + rtol * np.abs(desired) + 1e-300)

    def _watch_equal(self, actual, desired, **options):
        self._equal(actual, desired, **options)
        self._note(np.zeros(np.shape(desired)), 1.0)

    def _note(self, error, tolerance):
        if self._set is None or not error.size:
            return
        row = self.rows[self._set]
        row["tests"].add(self._test)
        if not self._reads_cases:
            row["cases"].add(self._test)
        row["numbers"] += error.size
        row["error"] = max(row["error"], float(error.max()))
        row["share"] = max(row["share"], float((error / tolerance).max()))

    def text(self):
        lines = ["| set | cases | tests | numbers | largest error | largest share of its tolerance | for its faults |"]
        lines.append("|---|---|---|---|---|---|---|")
        for name, row in sorted(self.rows.items()):
            folder, _, of_set = name.partition("/")
            switch = SWITCHES.get(of_set if folder == "routing_transformer" else folder, "-")
            figures = f"{row['numbers']:,} | {row['error']:.1e} | {row['share']:.2f} | {switch}"
            lines.append(f"| {name} | {len(row['cases'])} | {len(row['tests'])} | {figures} |")
        rows = self.rows.values()
        cases, tests = (sum(len(row[kind]) for row in rows) for kind in ("cases", "tests"))
        worst = [max((row[name] for row in rows), default=0.0) for name in ("error", "share")]
        numbers = sum(row["numbers"] for row in rows)
        lines.append(f"| all | {cases} | {tests} | {numbers:,} | {worst[0]:.1e} | {worst[1]:.2f} | |")
        return "\n".join(lines)


def main():
    """Run the tests, print the table, and return the status of pytest."""
    table = Table()
    paths = [str(path) for path in FILES] + [str(TESTS / name) for name in MORE]
    status = pytest.main(["-q", "-p", "no:xdist", "-m", "not large", *paths], plugins=[table])
    print(table.text())
    if "--write" in sys.argv and status == 0:
        write_between(DOCS / "results.md", MARKS, table.text())
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
