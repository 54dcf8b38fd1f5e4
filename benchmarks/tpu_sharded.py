"""Memory of a training step on each of several TPU devices that are not there: `python -m benchmarks.tpu_sharded`.

Compiles the whole step of a preset of the Routing Transformer for PG-19 (gradient, rematerialisation, mixed bfloat16,
Adafactor, as `trainers/configs/pg19.py` says) for a described topology, with one window for each device, and prints the
memory of a device for every way to divide the devices between batch and model: 8x1 is data parallelism alone. The
weights are laid out by `tsa.distribution`; no array is made.

The memory is that of a compilation with little effort unless `--full` is given. Exit status: 0 all compile, 1 one does
not (too much memory is an answer, no failure), 3 jax or libtpu is not installed.
"""

import argparse
import json
import re
import sys
import time

from benchmarks import tpu_compile

TOPOLOGY = "v5e:2x4"
PRESET = "pg19_local_cluster8k"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
COLUMNS = ("batch x model", "state MB", "temporary MB", "peak MB", "GFLOP", *COLLECTIVES, "s")
TOO_MUCH = re.compile(r"Used ([\d.]+)G of ([\d.]+)G hbm")


def make_step(preset, vocabulary_size, distribution):
    """Return (function, variables): a training step and the lists of variables it takes, which have no values."""
    import keras

    from benchmarks.tpu_programs import training_step
    from tf_sparse_attention import models, optimizers

    optimizer = optimizers.Adafactor(optimizers.RsqrtNormalizedDecay(0.01, 10_000))  # with numbers, on the CPU
    keras.distribution.set_distribution(distribution)
    with keras.StatelessScope(initialize_variables=False):
        model = models.LanguageModel.from_preset(preset, vocabulary_size, remat=True, dtype="mixed_bfloat16", seed=0)
        optimizer.build(model.trainable_variables)
    # Forgets that the variables wait for values, which the next stateless call would give them.
    keras.utils.clear_session(free_memory=False)
    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    return training_step(model, optimizer), variables


def compile_step(options, split):
    """Compile the step for devices divided as (batch, model) and returns what `row` prints."""
    import jax
    import keras
    from jax.experimental import topologies

    from tf_sparse_attention import distribution, models

    devices = topologies.get_topology_desc(options.topology, platform="tpu").devices
    mesh = keras.distribution.DeviceMesh(split, ("batch", "model"), devices)
    parallel = distribution.ModelParallel(layout_map=distribution.layout_map(mesh), auto_shard_dataset=False)
    step, variables = make_step(options.preset, options.vocabulary, parallel)
    described = [[_described(variable, parallel) for variable in group] for group in variables]
    shape = (options.batch or len(devices), options.length or models.PRESETS[options.preset]["sequence_length"])
    data = jax.ShapeDtypeStruct(shape, "int32", sharding=parallel.get_data_layout(shape).backend_layout)
    whole = keras.distribution.TensorLayout((), mesh).backend_layout
    layouts = [[described.sharding for described in group] for group in described]
    lowered = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=(whole, *layouts)).lower(*described, data, data)
    start = time.process_time()
    result = {"split": list(split), "weights": sum(v.size for v in described[0]), "shape": list(shape)}
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = TOO_MUCH.search(str(error))
        if needed is None:
            raise
        return {**result, "needed_gb": float(needed[1]), "available_gb": float(needed[2])}
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    names = [name.removesuffix("-start") for name in tpu_compile.INSTRUCTION.findall(compiled.as_text())]
    return {
        **result,
        "state_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "flops": cost.get("flops", 0.0),
        "collectives": {name: names.count(name) for name in COLLECTIVES},
        "seconds": time.process_time() - start,
    }


def _described(variable, distribution):
    import jax

    layout = distribution.get_variable_layout(variable)
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=layout.backend_layout)


def row(result):
    """Return a result as a line of text."""
    split = "{}x{}".format(*result["split"])
    if "needed_gb" in result:
        return f"{split:>13}  does not fit: {result['needed_gb']:.2f} GB of {result['available_gb']:.2f} GB"
    megabytes = [f"{result[name] / 1e6:.0f}" for name in ("state_bytes", "temporary_bytes", "peak_bytes")]
    counts = [result["collectives"][name] for name in COLLECTIVES]
    cells = [split, *megabytes, f"{result['flops'] / 1e9:.0f}", *counts, f"{result['seconds']:.0f}"]
    return "  ".join(str(cell).rjust(len(name)) for cell, name in zip(cells, COLUMNS, strict=True))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("splits", nargs="*", default=["8x1", "4x2", "2x4", "1x8"], help="BATCHxMODEL (default: all)")
    parser.add_argument("--preset", default=PRESET, help="default: %(default)s")
    parser.add_argument("--vocabulary", type=int, default=32_768, help="token ids (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="windows in all (default: as many as devices)")
    parser.add_argument("--length", type=int, help="tokens of a window (default: the preset's)")
    parser.add_argument("--topology", default=TOPOLOGY, help="generation and chips (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="compile with full effort, as a real run does")
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")
    options = parser.parse_args(argv)
    if tpu_compile.is_missing("benchmarks.tpu_sharded"):
        return tpu_compile.SKIPPED
    tpu_compile.set_environment(options.full)
    print("  ".join(COLUMNS), flush=True)
    results = []
    for split in options.splits:
        results.append(compile_step(options, tuple(int(number) for number in split.split("x"))))
        print(row(results[-1]), flush=True)
    print(f"{results[0]['weights']:,} weights, batches of {results[0]['shape']} on {options.topology}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
