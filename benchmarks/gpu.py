"""Time and memory of causal attention on a GPU: `KERAS_BACKEND=jax python -m benchmarks.gpu`.

Measures the cores of `benchmarks.attention`, in bfloat16 by default, with kernels where available; ", operations" marks
cores without kernels. They are compared with cuDNN's fused kernels (`jax.nn.dot_product_attention`), dense causal
attention and the window of the local core. The difference between kernels and plain operations is printed. All lengths
have the same number of tokens per batch, so local attention has the same amount of work. Times are wall-clock times of
blocking calls: the median of rounds that each run every program once. Memory is the memory of the compiled program
without its arguments. With `--torch`, a separate process measures PyTorch's attention and public packages, see
`benchmarks.gpu_torch`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

CASES = ("local", "nearest", "nearest, separate keys", "successors", "top_k", "lsh", "strided", "fixed")
OPERATIONS = ", operations"
PLAIN = tuple(case + OPERATIONS for case in ("local", "nearest", "lsh", "strided"))
DENSE, WINDOW = "cuDNN dense", "cuDNN window"
ALL = [*CASES, *PLAIN, DENSE, WINDOW]
LENGTHS = [2048, 8192, 32768]
PASSES = ("forward", "both")


class Program(NamedTuple):
    """Compiled program: its case, length and pass, its bytes without the arguments, and a blocking call."""

    case: str
    length: int
    name: str
    num_bytes: int
    run: Any


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="default: %(default)s")
    parser.add_argument("--cases", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--tokens", type=int, default=32768, help="per batch, at least one row (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=20, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--torch", action="store_true", help="also measure PyTorch")
    parser.add_argument("--json", metavar="FILE", help="also write all results to a JSON file")
    return parser.parse_args(argv)


def subject_of(case: str, length: int, options: argparse.Namespace) -> Any:
    """Return the `subjects.Subject` of a case."""
    from benchmarks import subjects

    sizes = subjects.Sizes(length, batch_size=max(options.tokens // length, 1))
    if case in CASES:
        subject = subjects.core_subject(case, sizes)
    elif case in PLAIN:
        subject = by_operations(subjects.core_subject(case.removesuffix(OPERATIONS), sizes))
    else:
        heads = tuple(x.swapaxes(1, 2).copy() for x in subjects.heads_of(sizes))  # (B, T, N, H)
        subject = subjects.Subject(fused(sizes.span if case == WINDOW else None), heads, 3)
    return subject._replace(arguments=tuple(_cast(x, options.dtype) for x in subject.arguments))


def _cast(x, dtype):
    import jax.numpy as jnp

    return x.astype(jnp.dtype(dtype))


def by_operations(subject: Any) -> Any:
    """Return a subject with attention without kernels."""
    from tf_sparse_attention.kernels.availability import use_kernel

    def function(*arguments):
        with use_kernel(None):
            return subject.function(*arguments)

    return subject._replace(function=function)


def fused(window: int | None) -> Any:
    """Return cuDNN's causal attention, dense or with a window."""
    import jax

    options = {} if window is None else {"local_window_size": (window - 1, 0)}

    def attend(query, key, value):
        output = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn", **options)
        return output, 0.0

    return attend


def compiled(wanted: tuple[str, int, str], options: argparse.Namespace) -> Program | str:
    """Return the compiled program of a case, a length and a pass, or the reason for a failure."""
    import jax

    from benchmarks import steps

    case, length, name = wanted
    try:
        lowered, arguments = steps.jax_program(subject_of(case, length, options), name == "both")
        program = lowered.compile()
        found = program.memory_analysis()
        num_bytes = found.temp_size_in_bytes + found.output_size_in_bytes
        run = lambda: jax.block_until_ready(program(*arguments))  # noqa: E731
        run()
    except Exception as error:  # for example a missing kernel; the caller prints the reason
        return f"{case}, {length}, {name}: {str(error).splitlines()[0][:300]}"
    return Program(case, length, name, num_bytes, run)


def median_seconds(runs: list[Any], repeats: int) -> list[float]:
    """Return the median seconds of each call, over rounds that run every call once."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, seconds in zip(runs, found, strict=True):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in found]


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one dictionary per program: "case", "length", "pass", "seconds" and "bytes"."""
    rows = []
    for length in options.lengths:  # compile the programs of a length in parallel, then run them one at a time
        wanted = [(case, length, name) for case in options.cases for name in PASSES]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            done = threads.map(lambda one: one[0] not in (DENSE, WINDOW) and compiled(one, options), wanted)
            # cuDNN sometimes aborts the process if several of its programs are compiled in parallel.
            found = [each or compiled(one, options) for one, each in zip(wanted, list(done), strict=True)]
        for line in (one for one in found if isinstance(one, str)):
            print(f"skipped: {line}", file=sys.stderr, flush=True)
        programs = [one for one in found if not isinstance(one, str)]
        tell_difference({one.case: one for one in programs if one.name == PASSES[0]}, length)
        seconds = median_seconds([one.run for one in programs], options.repeats)
        for one, taken in zip(programs, seconds, strict=True):
            row = {"case": one.case, "length": length, "pass": one.name, "seconds": taken, "bytes": one.num_bytes}
            rows.append(row)
        print(table([row for row in rows if row["length"] == length]), file=sys.stderr, flush=True)
    return rows


def tell_difference(programs: dict[str, Program], length: int) -> None:
    """Print the differences between cores with kernels and with plain operations; `programs` is keyed by case."""
    for case in PLAIN:
        with_kernel = case.removesuffix(OPERATIONS)
        if {case, with_kernel} <= set(programs):
            plain, kernel = (programs[name].run().astype("float32") for name in (case, with_kernel))
            difference = float(abs(plain - kernel).max() / abs(plain).max())
            print(f"{with_kernel}, {length}: relative difference {difference:.1e}", file=sys.stderr, flush=True)


def torch_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of `benchmarks.gpu_torch`, run in a separate process."""
    arguments = ["--tokens", str(options.tokens), "--dtype", options.dtype, "--repeats", str(options.repeats)]
    arguments += ["--lengths", *map(str, options.lengths)]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_torch", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(process.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table: milliseconds, time relative to dense attention, megabytes."""
    dense = {(row["length"], row["pass"]): row["seconds"] for row in rows if row["case"] == DENSE}
    lines = [
        "| length | attention | forward, ms | of dense | both, ms | of dense | memory of both, MB |",
        "|---" * 7 + "|",
    ]
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        found.setdefault((row["length"], row["case"]), {})[row["pass"]] = row
    for (length, case), passes in sorted(found.items(), key=lambda item: item[0][0]):
        cells = [str(length), case]
        for name in PASSES:
            seconds, least = passes.get(name, {}).get("seconds"), dense.get((length, name))
            cells.append("" if seconds is None else f"{1000 * seconds:.2f}")
            cells.append("" if seconds is None or least is None else f"{seconds / least:.2f}")
        num_bytes = passes.get("both", {}).get("bytes")
        cells.append("" if num_bytes is None else f"{num_bytes / 1e6:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shares(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table of times relative to dense attention, forward and both passes."""
    lengths = sorted({row["length"] for row in rows})
    seconds = {(row["case"], row["length"], row["pass"]): row["seconds"] for row in rows}
    num_bytes = {row["case"]: row["bytes"] for row in rows if row["pass"] == "both"}
    titles = [f"{length:,}: {name}" for length in lengths for name in PASSES]
    lines = ["| " + " | ".join(["attention", *titles, "MB"]) + " |", "|---" * (len(titles) + 2) + "|"]
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = [case]
        for length, name in ((length, name) for length in lengths for name in PASSES):
            own, dense = seconds.get((case, length, name)), seconds.get((DENSE, length, name))
            cells.append("" if own is None or dense is None else f"{own / dense:.2f}")
        cells.append(f"{num_bytes[case] / 1e6:,.0f}" if case in num_bytes else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Measure and print the tables."""
    options = parse(argv)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave memory for other processes
    import jax

    rows = rows_of(options) + (torch_rows(options) if options.torch else [])
    batch = ", ".join(f"{max(options.tokens // length, 1)} x {length}" for length in options.lengths)
    device = jax.devices()[0].device_kind
    print(f"attention cores, causal, 8 heads of 64, {options.dtype}, rows x tokens: {batch}; {device}")
    print(table(rows))
    print("\ntime relative to cuDNN's dense attention, and memory of both passes")
    print(shares(rows))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": device, "dtype": options.dtype, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
