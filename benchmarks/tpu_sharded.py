"""Memory per device of a training step on several TPUs, without TPUs: `python -m benchmarks.tpu_sharded`.

Compiles the training step of a Routing Transformer preset for PG-19 (gradient, rematerialization, mixed bfloat16,
Adafactor, as in `trainers/configs/pg19.py`) for a described topology, with one window per device. Prints the memory per
device for several splits of the devices between batch and model; 8x1 is data parallelism only. `tsa.distribution`
shards the weights; no arrays are created.

Compilation has low effort, unless `--full` is given. Exit status: 0 all programs compile (exceeding the memory is a
result, not a failure), 1 a program does not compile, 3 jax or libtpu is not installed.
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
    """Return a training step and the lists of its variables, which have no values."""
    import keras

    from benchmarks.tpu_programs import training_step
    from tf_sparse_attention import models, optimizers

    optimizer = optimizers.Adafactor(optimizers.RsqrtNormalizedDecay(0.01, 10_000))  # creates numbers on the CPU
    keras.distribution.set_distribution(distribution)
    with keras.StatelessScope(initialize_variables=False):
        model = models.LanguageModel.from_preset(preset, vocabulary_size, remat=True, dtype="mixed_bfloat16", seed=0)
        optimizer.build(model.trainable_variables)
    # Discard deferred initializers; otherwise the next stateless call would initialize the variables.
    keras.utils.clear_session(free_memory=False)
    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    return training_step(model, optimizer), variables


def compile_step(options, split):
    """Compile the step for devices split as (batch, model), and return the result for `row`."""
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
    parser.add_argument("--batch", type=int, help="global batch size in windows (default: number of devices)")
    parser.add_argument("--length", type=int, help="tokens per window (default: the preset's)")
    parser.add_argument("--topology", default=TOPOLOGY, help="generation and chips (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="compile with full effort, as in a real run")
    parser.add_argument("--json", metavar="FILE", help="also write all results to a JSON file")
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
