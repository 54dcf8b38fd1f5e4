"""Compilation of the TensorFlow training step for TPUs, without a TPU: `python -m benchmarks.tpu_tensorflow`.

TensorFlow lowers the training step of `fit`, including optimizer and metrics, to StableHLO. libtpu compiles it, as with
`tf.distribute.TPUStrategy`; TensorFlow itself cannot compile for a missing device. This program uses internals of jax
0.10 and may fail with other releases. It needs tensorflow, jax and libtpu in one environment: pip install "jax[tpu]" in
addition to `.[train]`.
"""

import argparse
import os
import re
import sys
import time

from benchmarks import tpu_compile


def lowered_step(length):
    """Return the training step of a language model with two layers as serialized StableHLO.

    Args:
        length: T, for one row.
    """
    import numpy as np
    import tensorflow as tf

    from tf_sparse_attention import models, optimizers

    local = {"layer": "LocalAttention", "num_heads": 6, "key_dim": 64, "window": 256}
    routed = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 64, "num_clusters": 8, "cluster_size": 128}
    policy = {"dtype": "mixed_bfloat16"}
    backbone = models.Backbone(258, 2, 512, [local, routed], intermediate_dim=2048, seed=0, **policy)
    model = models.LanguageModel(backbone, **policy)
    model.compile(optimizers.Adafactor(1e-2), loss=models.language_model_loss())
    model(np.zeros((1, length), "int32"))
    model.optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True, autograph=False)
    def step(token_ids, targets):
        model.train_step((token_ids, targets))

    rows = tf.TensorSpec((1, length), "int32")
    return step.experimental_get_compiler_ir(rows, rows)(stage="stablehlo_serialized")


def without_copies(text):
    """Return an MLIR program without `mhlo.copy`, which comes from assigned variables and does not compile."""
    names, lines = {}, []
    for line in text.splitlines():
        copy = re.match(r"\s*(%\w+) = mhlo\.copy (%[\w#]+) :", line)
        if copy:
            names[copy[1]] = names.get(copy[2], copy[2])
        else:
            lines.append(line)
    return re.sub(r"%\w+", lambda found: names.get(found[0], found[0]), "\n".join(lines))


def compile_module(serialized, topology):
    """Return the module compiled for the first device of a topology."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    device = topologies.get_topology_desc(topology, platform="tpu").devices[0]
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, serialized)
        module = ir.Module.parse(without_copies(str(module)))
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        return device.client.compile(module, xla_client.DeviceList((device,)), options)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=1024, help="default: %(default)s")
    parser.add_argument("--topology", default=tpu_compile.TOPOLOGY, help="default: %(default)s")
    options = parser.parse_args(argv)
    if tpu_compile.is_missing("benchmarks.tpu_tensorflow"):
        return tpu_compile.SKIPPED
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tpu_compile.set_environment()
    serialized = lowered_step(options.length)
    start = time.process_time()
    program = compile_module(serialized, options.topology)
    memory = program.get_compiled_memory_stats()
    counts = tpu_compile.count_ops(program.hlo_modules()[0].to_string())
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    print(f"peak {memory.peak_memory_in_bytes / 1e6:.0f} MB, compiled in {time.process_time() - start:.0f} s")
    return 1 if counts["while"] else 0


if __name__ == "__main__":
    sys.exit(main())
