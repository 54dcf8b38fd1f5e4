"""Compilation of JAX functions for TPUs without a TPU, and analysis of the compiled program.

libtpu contains the whole compiler and compiles for a described topology, without a device, network or account. It
cannot run the program, so results and speed are not checked. It does find unsupported operations, programs that exceed
the memory, and loops.
"""

import collections
import importlib.util
import os
import re
import sys
import time
from typing import NamedTuple

from benchmarks import tpu_kernels

# Read once, when libtpu is loaded: call `set_environment` before JAX is imported.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # create weights and constants on the CPU
    "KERAS_BACKEND": "jax",
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server of a cloud
    "TPU_WORKER_HOSTNAMES": "localhost",  # otherwise an error is logged at every start
    "TPU_LOG_DIR": "disabled",  # otherwise one log file per process
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise a second process at the same time aborts on a lock file
}
# Low effort: compiles several times faster, with the same gathers, scatters, sorts and loops, but more memory.
FAST = {"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1.0"}
TOPOLOGY = "v5e:2x2"
# Peak bfloat16 operations per second and memory bandwidth in bytes per second, per chip.
CHIPS = {"v5e": (197e12, 819e9), "v6e": (918e12, 1640e9)}
SKIPPED = 3  # exit status of programs that cannot compile here
COUNTED = ("gather", "scatter", "sort", "while")
# `%name = type opcode(operands)`; a type has no space before a parenthesis: bf16[8,128]{1,0:T(8,128)(2,1)}.
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\(", re.MULTILINE)


class Compiled(NamedTuple):
    """Properties of a program compiled for one device.

    Attributes:
        ops: {name: number} of the `COUNTED` operations.
        argument_bytes, temporary_bytes, peak_bytes: memory of the device.
        moved_bytes: bytes that operations read and write, in XLA's count. A gathered row counts as its whole tile; the
            operands of a kernel count once.
        flops: floating-point operations, including kernels; operations in a loop count once.
        kernel_flops: floating-point operations of kernels.
        seconds: processor time of the compilation.
    """

    ops: dict
    argument_bytes: int
    temporary_bytes: int
    peak_bytes: int
    moved_bytes: float
    flops: float
    kernel_flops: float
    seconds: float

    def least_milliseconds(self, chip):
        """Return a lower bound of the time on a chip, at its peak arithmetic or memory bandwidth."""
        flops, bytes_per_second = CHIPS[chip]
        return 1e3 * max(self.flops / flops, self.moved_bytes / bytes_per_second)


def missing_packages():
    """Return the names of required packages that are not installed."""
    return [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]


def is_missing(program):
    """Return whether required packages are missing, and print their names to standard error.

    Args:
        program: name of the skipped program, for the message.
    """
    missing = missing_packages()
    if missing:
        print(f"{program} skipped: not installed: {', '.join(missing)} (pip install 'jax[tpu]')", file=sys.stderr)
    return bool(missing)


def check_names(parser, names, known):
    """Exit with an error of the `argparse.ArgumentParser` that lists all known names, if a name is unknown."""
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"names must be in {'; '.join(known)}. Received: {unknown[0]}.")


def set_environment(full=False):
    """Set environment variables that libtpu and JAX read when they are loaded, unless the user has set them."""
    for name, value in {**ENVIRONMENT, **({} if full else FAST)}.items():
        os.environ.setdefault(name, value)


def count_ops(text):
    """Return {name: number} of the `COUNTED` operations in an HLO program; an asynchronous pair counts once."""
    names = (name.removesuffix("-start") for name in INSTRUCTION.findall(text))
    seen = collections.Counter(names)
    return {name: seen[name] for name in COUNTED}


def compile_for_tpu(function, arguments, topology=TOPOLOGY, kernel=None):
    """Compile `function` for the first device of a topology and return a `Compiled`.

    Args:
        function: the function to compile.
        arguments: tuple of arguments, trees of arrays or of `jax.ShapeDtypeStruct`.
        topology: generation and chips, such as "v5e:2x2" or "v4:2x2x1".
        kernel: the `kernels.availability.Kernel` that attention may use; None: plain operations.
    """
    import jax
    from jax.experimental import topologies
    from jax.sharding import AxisType, Mesh, SingleDeviceSharding, use_abstract_mesh

    from tf_sparse_attention.kernels.availability import use_kernel

    device = topologies.get_topology_desc(topology, platform="tpu").devices[0]
    mesh = Mesh([device], ("one",), axis_types=(AxisType.Auto,)).abstract_mesh
    where = SingleDeviceSharding(device)
    described = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), arguments)
    with use_kernel(kernel), use_abstract_mesh(mesh):  # kernels read their device from the mesh
        lowered = jax.jit(function).lower(*described)
    start = time.process_time()
    compiled = lowered.compile()
    seconds, text = time.process_time() - start, compiled.as_text()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return Compiled(
        count_ops(text),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.peak_memory_in_bytes,
        cost.get("bytes accessed", 0.0),
        cost.get("flops", 0.0) + tpu_kernels.flops(text),
        tpu_kernels.flops(text),
        seconds,
    )
