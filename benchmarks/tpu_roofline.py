"""What attention layers move and compute on a TPU, without one: `make tpu-roofline`, a table of Markdown.

Layers of `benchmarks.tpu_layers` in bfloat16, at 8192 positions with 8 heads of 64, a window and clusters of 256,
compiled for v5e with the kernel that serves there and by plain operations, beside dense attention and beside a layer
whose attention is JAX's own splash attention with the same window. "both" is the forward and the backward pass. "moved"
is what the program reads and writes by XLA's count, in which a row that is gathered costs the whole tile it lies in; "x
least" says how many times what it must: inputs, queries, keys, values, heads, outputs and their gradients, each written
and read once. Times are those at the peak of arithmetic or memory, whichever takes longer: what a chip does not beat,
not what it reaches. Operations of the kernel count with the pairs that it hides.
"""

import argparse
import json
import sys

from benchmarks import tpu_compile

DENSE, SPLASH = "dense", "splash attention, same window"
LENGTH, WINDOW, WIDTH = 8192, 256, 512
COLUMNS = ("layer", "by", "pass", "moved MB", "x least", "GFLOP", "v5e ms", "v6e ms", "of dense", "gather", "sort")
# Arrays of the size of the input. Forward: the input 1, queries, keys, values and heads 2 each, the output 1. Backward:
# the output's gradient 1, heads again 1, their gradient 2, what the core reads again 4, the gradients of queries, keys
# and values 2 each, the input again 1 and its gradient 1. The second number is that of keys and values, of which layers
# have a share.
LEAST = {"forward": (6, 4), "both": (16, 10)}


def layers_of():
    """Return {name: `tpu_layers.Layer`} of the table."""
    from benchmarks.tpu_layers import HEADS, LAYERS, Layer
    from tf_sparse_attention import layers

    return {DENSE: Layer(lambda: layers.DenseAttention(**HEADS)), SPLASH: Layer(splash_layer), **LAYERS}


def splash_layer():
    """Return local attention whose heads are computed by splash attention as JAX has it."""
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention

    from benchmarks.tpu_layers import HEADS
    from tf_sparse_attention import layers

    mask = splash_attention.LocalMask((LENGTH, LENGTH), (WINDOW - 1, 0), 0)
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * HEADS["num_heads"]),
        block_sizes=splash_attention.BlockSizes(*[WINDOW] * 8),  # ours has the same
    )

    class Splash(layers.LocalAttention):
        def compute_attention(self, heads, masks, causal, training=False, return_weights=False):
            query, key, value = heads
            return jax.vmap(kernel)(query * self.key_dim**-0.5, key, value), None

    return Splash(window=WINDOW, **HEADS)


def rows_of(names):
    """Return a dictionary for each layer, way to compute it and pass."""
    from benchmarks.tpu_layers import layer_program
    from tf_sparse_attention.kernels.availability import MOSAIC as KERNEL
    from tf_sparse_attention.kernels.availability import Kernel

    array, rows, layers = 2 * LENGTH * WIDTH, [], layers_of()
    for name in names:
        for kernel in (None, Kernel(KERNEL)):
            for passed, (others, keys) in LEAST.items():
                program = layer_program(layers[name], passed == "both", LENGTH, "bfloat16")
                compiled = tpu_compile.compile_for_tpu(*program, kernel=kernel)
                by = "kernel" if compiled.kernel_flops else "operations"
                if any((name, by, passed) == (row["layer"], row["by"], row["pass"]) for row in rows):
                    continue  # no kernel serves, or one is all that the layer has
                print(f"{name}, {by}, {passed}", file=sys.stderr, flush=True)
                found = {"layer": name, "by": by, "pass": passed, **compiled._asdict()}
                found["least_bytes"] = array * (others + keys * layers[name].key_share)
                rows.append(found | {chip: compiled.least_milliseconds(chip) for chip in tpu_compile.CHIPS})
    return rows


def table_of(rows):
    """Return the rows as Markdown."""
    dense = {row["pass"]: row["v5e"] for row in rows if row["layer"] == DENSE and row["by"] == "operations"}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * 3 + "---:|" * (len(COLUMNS) - 3)]
    for row in rows:
        moved = row["moved_bytes"]
        share = f"{row['v5e'] / dense[row['pass']]:.2f}" if dense else ""
        figures = [f"{moved / 1e6:.0f}", f"{moved / row['least_bytes']:.1f}", f"{row['flops'] / 1e9:.0f}"]
        figures += [f"{row[chip]:.2f}" for chip in tpu_compile.CHIPS]
        figures += [share, str(row["ops"]["gather"]), str(row["ops"]["sort"])]
        lines.append("| " + " | ".join([row["layer"], row["by"], row["pass"], *figures]) + " |")
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("layers", nargs="*", help="names in the table (default: all)")
    parser.add_argument("--full", action="store_true", help="compile with full effort, as a real run does")
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")
    options = parser.parse_args(argv)
    if tpu_compile.is_missing("tpu-roofline"):
        return tpu_compile.SKIPPED
    tpu_compile.set_environment(options.full)
    tpu_compile.check_names(parser, options.layers, layers_of())
    rows = rows_of(options.layers or layers_of())
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
