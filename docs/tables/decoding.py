"""Prints how far decoding is from whole calls: python -m docs.tables.decoding [--cases N] [--jax-cases N] [--write].

Draws layers of every kind, with their arguments, lengths, prompts and masks, and compares decoding token by token, with
rows at different positions, with one causal call for the whole sequence. It also compares models, layers and models
that continue after a memory, and cross-attention. Each backend runs in a separate process. With `--write`
the table goes into docs/results.md, between its two marks.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings

from tests.pages import DOCS, ROOT, write_between

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
MARKS = "<!-- decoding: begin -->", "<!-- decoding: end -->"
CASES_OF_A_MODEL = 20  # draws of layers cost as much time as one text of a model


def measures(cases):
    """Return functions by the names of their rows, each of which returns a number of cases and the largest error."""
    from tests.layers import decoded
    from tests.models.test_decoding import MODELS, REMEMBERING

    texts = -(-cases // CASES_OF_A_MODEL)
    rows = {kind: lambda kind=kind: decoded.compare_drawn(kind, cases) for kind in [*decoded.KINDS, "mixed"]}
    rows["from a memory"] = lambda: decoded.compare_remembered(cases)
    for kind in [*decoded.CROSSING, "mixed"]:
        rows[f"cross: {kind}"] = lambda kind=kind: decoded.compare_crossing(kind, cases)
    for name, settings in MODELS.items():
        rows[f"model: {name}"] = lambda settings=settings: compare_model(settings, texts)
    for name, settings in REMEMBERING.items():
        rows[f"model from a memory: {name}"] = lambda settings=settings: compare_model(settings, texts, True)
    return rows


def compare_model(settings, texts, remembers=False):
    """Compare a model on texts of three rows, with prompts of different lengths, after a memory if it remembers."""
    import numpy as np

    from tests.models.test_decoding import largest_error, make

    model, errors = make(**settings), []
    for seed in range(texts):
        rng = np.random.default_rng(seed)
        ids, memory = rng.integers(1, 30, (3, 24)), None
        if remembers:
            memory = model.forward_with_memory(rng.integers(1, 30, (3, 11)), model.init_memory(3))[1]
        errors.append(largest_error(model, ids, rng.integers(1, 24, 3), memory))
    return texts, float(max(errors))


def rows_of(backend, cases):
    """Return the rows of a backend, run in a process."""
    command = [sys.executable, "-m", "docs.tables.decoding", "--rows", "--cases", str(cases)]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table_of(results):
    """Return the table as Markdown, given the rows by backend."""
    columns = [f"{title}: cases | largest error" for title in BACKENDS.values()]
    lines = ["| what decodes | " + " | ".join(columns) + " |", "|---" * (1 + 2 * len(BACKENDS)) + "|"]
    totals = {"all": [(sum(n for n, _ in rows.values()), max(error for _, error in rows.values())) for rows in results]}
    for name, pairs in [*((name, [rows[name] for rows in results]) for name in results[0]), *totals.items()]:
        lines.append(f"| {name} | " + " | ".join(f"{cases} | {error:.1e}" for cases, error in pairs) + " |")
    return "\n".join(lines)


def main():
    """Print the table; with `--rows` the rows of one backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="drawn layers of each kind on TensorFlow")
    parser.add_argument("--jax-cases", type=int, default=40, help="drawn layers of each kind on JAX")
    parser.add_argument("--rows", action="store_true", help="print the rows of KERAS_BACKEND as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    given = parser.parse_args()
    if given.rows:
        from tests import conftest  # noqa: F401  the settings of the test suite, so that draws are the same each time

        warnings.simplefilter("ignore")
        print(json.dumps({name: measure() for name, measure in measures(given.cases).items()}))
        return
    table = table_of([rows_of("tensorflow", given.cases), rows_of("jax", given.jax_cases)])
    print(table)
    if given.write:
        write_between(DOCS / "results.md", MARKS, table)


if __name__ == "__main__":
    main()
