"""Time and memory of causal attention against length, beside dense attention: `python -m benchmarks.attention`.

What is compared: attention CORES, functions of heads that are given first, (1, 8, T, 64) in float32, against PyTorch's
`scaled_dot_product_attention` (if it is installed), dense and causal. Local attention sees a window of 256, routing has
clusters of 256 and T / 256 of them; its core includes the norm, the choice of clusters, both sorts and the way back.
Block selection has three blocks of 128. "Grouped": the eight heads share two heads of keys and values. Strided and
fixed attention have a stride of 128 (8 summary columns), half of the heads the local part; all-attention sees the
window of 256 and 1024 persistent vectors. Clustered attention (100 clusters of 32 bits, 10 iterations, the improved
form with the 32 best keys) is not causal; its core includes the hash and the k-means.
With `--layers` whole layers in training, projections and the update of centroids included, against
`keras.layers.MultiHeadAttention` of the same width; among them native sparse attention with its defaults (16 blocks of
64, a window of 512) and with blocks as block selection has them (three of 128, a window of 256).

Seconds are processor seconds of one thread, the least of several rounds in which every pass runs once, dense ones in
between. Of the ways a backend compiles (TensorFlow: graph, xla; JAX: jit) the faster one is shown. Peak memory is what
the process grows by during forward and backward, results included, measured in a process of its own. "Remat" computes a
core one head at a time and again in the backward pass, and a layer as `TransformerBlock(remat=True)` does.
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
LAYER_CASES = ("native", "native, few blocks")  # whose parts have projections of their own: there is no core


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="default: %(default)s")
    every = (*CASES, *LAYER_CASES)
    parser.add_argument("--cases", nargs="+", choices=every, metavar="CASE", help="some of " + "; ".join(every))
    parser.add_argument("--backend", choices=list(worker.MODES), default="tensorflow", help="default: %(default)s")
    parser.add_argument("--layers", action="store_true", help="measure whole layers rather than attention cores")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--no-memory", action="store_true", help="leave out the measurements of memory")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless every aim is met")
    options = parser.parse_args(argv)
    options.cases = options.cases or [*CASES, *(LAYER_CASES if options.layers else ())]
    if not options.layers and (only := [case for case in options.cases if case in LAYER_CASES]):
        parser.error(f"{'; '.join(only)}: measured as whole layers alone. Add --layers.")
    return options


def run_worker(wanted, backend):
    """Return the result of a `worker.Measurement` from a process of its own, {"skipped": reason} if that fails."""
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
    """Return the row of a case, or None after saying why there is none."""
    wanted = worker.Measurement(
        "time", case, length, options.layers, worker.MODES[options.backend], repeats=max(options.repeats, 1)
    )
    seconds = run(wanted, options.backend)
    if "skipped" in seconds:
        say(f"{case}, {length}: {seconds['skipped']}")
        return None
    memory = {}
    if not options.no_memory:
        wanted = wanted._replace(kind="memory", modes=(tables.best_mode(seconds),))
        for remat in (False, True)[: 2 if worker.has_remat(case, options.layers) else 1]:
            memory[remat] = run(wanted._replace(remat=remat), options.backend)
            if "skipped" in memory[remat]:
                say(f"{case}, {length}, memory: {memory[remat]['skipped']}")
    say(f"measured: {case}, {length}")
    return tables.row_of(case, length, seconds, memory.get(False), memory.get(True))


def torch_row(length, rows, options, run):
    """Return the row of PyTorch's dense attention, the fastest beside any of the cases, or None if there is none."""
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
