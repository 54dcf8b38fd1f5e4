"""Compilation of layers and a training step for TPUs, without a TPU: `make tpu-check`.

Every program of `benchmarks.tpu_programs`, on the JAX backend in bfloat16 at length 2048, must compile without a
`while`, and without more gathers, scatters and sorts than its bounds allow. Attention uses TPU kernels where available;
`--plain` disables them. The table shows memory in MB per device, for a compilation with low effort. `--full` compiles
with full effort, which takes several times as long. "moved" is the memory traffic of the operations in XLA's count. The
last columns are lower bounds of the time on v5e and v6e, at their peak arithmetic or memory bandwidth.

Exit status: 0 no problems, 1 problems found, 3 jax or libtpu is not installed.
"""

import argparse
import json
import sys

from benchmarks import tpu_compile

COLUMNS = ("program", "gather", "scatter", "sort", "while", "weights+input MB", "temporary MB", "peak MB", "moved MB")
COLUMNS += ("GFLOP", *(f"{chip} ms" for chip in tpu_compile.CHIPS), "s")


def check(names, topology, kernel):
    """Compile programs and print a line for each.

    Args:
        names: names from `tpu_programs.PROGRAMS`; empty for all programs.
        topology: see `tpu_compile.compile_for_tpu`.
        kernel: see `tpu_compile.compile_for_tpu`.

    Returns:
        List of {"program", "ops", "temporary_bytes", "problem", ...}; "problem" is "" without a problem.
    """
    from benchmarks import tpu_programs

    results = []
    print(_line(COLUMNS))
    for name in names or tpu_programs.PROGRAMS:
        program = tpu_programs.PROGRAMS[name]
        try:
            compiled = tpu_compile.compile_for_tpu(*program.make(), topology, kernel)
        except Exception as error:  # any failure, from tracing to the compiler, is a result
            result = {"program": name, "problem": f"{type(error).__name__}: {error}"[:2000]}
            print(f"{name}: {result['problem']}")
        else:
            problem = tpu_programs.excess(compiled.ops, program.bounds)
            result = {"program": name, **compiled._asdict(), "bounds": program.bounds._asdict(), "problem": problem}
            print(_line(_cells(name, compiled)) + (f"  TOO MANY: {problem}" if problem else ""), flush=True)
        results.append(result)
    return results


def _cells(name, compiled):
    memory = (compiled.argument_bytes, compiled.temporary_bytes, compiled.peak_bytes, compiled.moved_bytes)
    counts = [compiled.ops[name] for name in tpu_compile.COUNTED]
    times = (f"{compiled.least_milliseconds(chip):.3f}" for chip in tpu_compile.CHIPS)
    sizes = (f"{size / 1e6:.0f}" for size in memory)
    return [name, *counts, *sizes, f"{compiled.flops / 1e9:.1f}", *times, compiled.seconds]


def _line(cells):
    first, *rest = cells
    widths = [len(name) for name in COLUMNS[1:]]
    texts = [f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in rest]
    return "  ".join([first.ljust(50), *(text.rjust(width) for text, width in zip(texts, widths, strict=True))])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", help="names of programs (default: all)")
    parser.add_argument("--topology", default=tpu_compile.TOPOLOGY, help="generation and chips (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="compile with full effort, as in a real run")
    parser.add_argument("--plain", action="store_true", help="compute attention without kernels")
    parser.add_argument("--json", metavar="FILE", help="also write all results to a JSON file")
    options = parser.parse_args(argv)
    if tpu_compile.is_missing("tpu-check"):
        return tpu_compile.SKIPPED
    tpu_compile.set_environment(options.full)
    from benchmarks.tpu_programs import PROGRAMS
    from tf_sparse_attention.kernels.availability import MOSAIC, Kernel

    tpu_compile.check_names(parser, options.programs, PROGRAMS)
    results = check(options.programs, options.topology, None if options.plain else Kernel(MOSAIC))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 1 if any(result["problem"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
