"""Time and memory of causal attention by length, compared with dense attention: `python -m benchmarks.attention`.

By default, this compares attention cores, functions of given heads, float32 (1, 8, T, 64), with PyTorch's causal
`scaled_dot_product_attention`, if it is installed. Local attention has a window of 256. Routing has T / 256 clusters
of 256; its core includes normalization, cluster assignment, both sorts and restoring the order. Block selection has
three blocks of 128. "Grouped": eight query heads share two key-value heads. Strided and fixed attention have a stride
of 128 (8 summary columns), with local attention in half of the heads. All-attention has a window of 256 and 1024
persistent vectors. Clustered attention is not causal; it has 100 clusters, 32 hash bits and 10 iterations, and its core
includes the hash and k-means. Improved clustered attention adds the top 32 keys.

With `--layers`, this compares whole layers in training, including projections and centroid updates, with
`keras.layers.MultiHeadAttention` of the same width. These include native sparse attention with its defaults (16 blocks
of 64, a window of 512) and with three blocks of 128 and a window of 256.

Seconds are processor seconds of one thread: the minimum of several rounds that each run every pass once, including
dense attention. The table shows the faster compilation mode of the backend (TensorFlow: graph or xla; JAX: jit). Peak
memory is the growth of a separate process during forward and backward pass, including results, always with XLA
(xla or jit): the graph mode of TensorFlow keeps what "remat" frees. "Remat" computes a core one head at a time and
recomputes it in the backward pass; a layer uses `TransformerBlock(remat=True)`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import tables, worker

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = [1024, 2048, 4096, 8192, 16384]
CASES = ("local", "local, grouped", "image", "nearest", "nearest, separate keys", "successors", "top_k", "lsh")
CASES += ("selected", "selected, grouped", "strided", "fixed", "all-attention", "clustered", "improved clustered")
CASES += (worker.DENSE,)
LAYER_CASES = ("native", "native, few blocks")  # their parts have separate projections, so there is no core


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="default: %(default)s")
    every = (*CASES, *LAYER_CASES)
    parser.add_argument("--cases", nargs="+", choices=every, metavar="CASE", help="some of " + "; ".join(every))
    parser.add_argument("--backend", choices=list(worker.MODES), default="tensorflow", help="default: %(default)s")
    parser.add_argument("--layers", action="store_true", help="measure whole layers instead of attention cores")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--no-memory", action="store_true", help="skip memory measurements")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", metavar="FILE", help="also write all results to a JSON file")
    parser.add_argument("--check", action="store_true", help="exit with status 1 unless all targets are met")
    options = parser.parse_args(argv)
    options.cases = options.cases or [*CASES, *(LAYER_CASES if options.layers else ())]
    if not options.layers and (only := [case for case in options.cases if case in LAYER_CASES]):
        parser.error(f"{'; '.join(only)}: measured only as whole layers. Add --layers.")
    return options


def run_worker(wanted, backend):
    """Return the result of a `worker.Measurement` in a separate process, or {"skipped": reason} if it fails."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker", json.dumps(wanted._asdict())],
        cwd=ROOT,
        env={**os.environ, **worker.environment(wanted, backend)},
        capture_output=True,
        text=True,
    )
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    reason = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return {"skipped": f"failed: {reason[:300]}"}


def measure(case, length, options, run):
    """Return the row of a case, or print the reason and return None."""
    wanted = worker.Measurement(
        "time", case, length, options.layers, worker.MODES[options.backend], repeats=max(options.repeats, 1)
    )
    seconds = run(wanted, options.backend)
    if "skipped" in seconds:
        say(f"{case}, {length}: {seconds['skipped']}")
        return None
    memory = {}
    if not options.no_memory:
        wanted = wanted._replace(kind="memory", modes=worker.MODES[options.backend][-1:])
        for remat in (False, True)[: 2 if worker.has_remat(case, options.layers) else 1]:
            memory[remat] = run(wanted._replace(remat=remat), options.backend)
            if "skipped" in memory[remat]:
                say(f"{case}, {length}, memory: {memory[remat]['skipped']}")
    say(f"measured: {case}, {length}")
    return tables.row_of(case, length, seconds, memory.get(False), memory.get(True))


def torch_row(length, rows, options, run):
    """Return the row of PyTorch's dense attention, with its least time over all cases, or None without PyTorch."""
    seconds = [row["seconds"] for row in rows if row["length"] == length and "dense torch both" in row["seconds"]]
    if not seconds:
        return None
    names = ("torch forward", "torch both")
    least = {name: min(found[f"dense {name}"] for found in seconds) for name in names}
    memory = None
    if not options.no_memory:
        memory = run(worker.Measurement("memory", "torch dense", length, modes=("eager",)), options.backend)
    return tables.row_of("torch dense", length, least, memory)


def say(line):
    print(line, file=sys.stderr, flush=True)


def main(argv=None, run=run_worker):
    options = parse(argv)
    rows = [measure(case, length, options, run) for case in options.cases for length in options.lengths]
    rows = [row for row in rows if row is not None]
    rows += [row for length in options.lengths if (row := torch_row(length, rows, options, run)) is not None]
    rows = tables.with_growth(rows)
    what = "whole layers in training" if options.layers else "attention cores"
    print(f"{what}, causal, batch 1, 8 heads of 64, float32, {options.backend}, one thread")
    print(tables.table(rows, options.markdown))
    aims = [] if options.layers else tables.aims_met(rows)
    for sentence, met in aims:
        print(f"{'met   ' if met else 'MISSED'} {sentence}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"what": what, "backend": options.backend, "rows": rows}, file, indent=1)
    return 1 if options.check and not all(met for _, met in aims) else 0


if __name__ == "__main__":
    sys.exit(main())
