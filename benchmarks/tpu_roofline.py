"""Memory traffic and operations of attention layers on TPUs, without a TPU: `make tpu-roofline`, a Markdown table.

Compiles the layers of `benchmarks.tpu_layers` for v5e, in bfloat16 at 8192 positions with 8 heads of 64, and window and
clusters of 256, with kernels and with plain operations. They are compared with dense attention and with JAX's splash
attention of the same window. "both" is forward and backward pass. "moved" is the memory traffic of the program in XLA's
count, where a gathered row counts as its whole tile. "x least" is relative to the minimal traffic: inputs, queries,
keys, values, heads, outputs and their gradients, each written and read once. Times are at peak arithmetic or memory
bandwidth, whichever takes longer: lower bounds, not measurements. Operations of a kernel include masked pairs.
"""

import argparse
import json
import sys

from benchmarks import tpu_compile

DENSE, SPLASH = "dense", "splash attention, same window"
LENGTH, WINDOW, WIDTH = 8192, 256, 512
COLUMNS = ("layer", "by", "pass", "moved MB", "x least", "GFLOP", "v5e ms", "v6e ms", "of dense", "gather", "sort")
# Minimal traffic in units of the size of the input, for arrays other than keys and values, and for keys and values,
# which `key_share` scales. Forward: input 1; queries, keys, values and heads 2 each; output 1. Backward: gradient of
# the output 1; heads 1; their gradient 2; arrays that the core reads again 4; gradients of queries, keys and values 2
# each; input 1; its gradient 1.
LEAST = {"forward": (6, 4), "both": (16, 10)}


def layers_of():
    """Return {name: `tpu_layers.Layer`} for the rows of the table."""
    from benchmarks.tpu_layers import HEADS, LAYERS, Layer
    from tf_sparse_attention import layers

    return {DENSE: Layer(lambda: layers.DenseAttention(**HEADS)), SPLASH: Layer(splash_layer), **LAYERS}


def splash_layer():
    """Return local attention computed by JAX's splash attention."""
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention

    from benchmarks.tpu_layers import HEADS
    from tf_sparse_attention import layers

    mask = splash_attention.LocalMask((LENGTH, LENGTH), (WINDOW - 1, 0), 0)
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * HEADS["num_heads"]),
        block_sizes=splash_attention.BlockSizes(*[WINDOW] * 8),  # as in the kernel of this library
    )

    class Splash(layers.LocalAttention):
        def compute_attention(self, heads, masks, causal, training=False, return_weights=False):
            query, key, value = heads
            return jax.vmap(kernel)(query * self.key_dim**-0.5, key, value), None

    return Splash(window=WINDOW, **HEADS)


def rows_of(names):
    """Return one dictionary per layer, implementation (kernel or operations) and pass."""
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
                    continue  # the layer has no kernel, or always uses a kernel
                print(f"{name}, {by}, {passed}", file=sys.stderr, flush=True)
                found = {"layer": name, "by": by, "pass": passed, **compiled._asdict()}
                found["least_bytes"] = array * (others + keys * layers[name].key_share)
                rows.append(found | {chip: compiled.least_milliseconds(chip) for chip in tpu_compile.CHIPS})
    return rows


def table_of(rows):
    """Return the rows as a Markdown table."""
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
    parser.add_argument("--full", action="store_true", help="compile with full effort, as in a real run")
    parser.add_argument("--json", metavar="FILE", help="also write all results to a JSON file")
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
