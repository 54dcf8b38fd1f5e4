"""One measurement in a separate process: `python -m benchmarks.worker JSON` prints a JSON object.

The parent process sets the backend and threads in the environment (`ENVIRONMENT`), before any import, and passes the
fields of a `Measurement` as JSON.
"""

import json
import sys
import time
from typing import NamedTuple

MODES = {"tensorflow": ("graph", "xla"), "jax": ("jit",)}  # compilation modes by backend
# One thread, so that processor time does not depend on the number of cores.
ENVIRONMENT = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
}
# TensorFlow's oneDNN allocator keeps memory, and so does malloc for small blocks. In graph mode this is part of the
# result, and the first call is measured. In other modes the first call also compiles, so the second call is measured,
# and all memory must be released before it.
GIVE_BACK = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "131072"}
DENSE = "keras dense"
# Cores with two kinds of heads or with grouped-query heads, which cannot be computed one head at a time.
NOT_ALONE = ("strided", "fixed", "local, grouped", "selected, grouped")
WARM_UP = 64  # positions of a first call that loads libraries, before memory is measured


class Measurement(NamedTuple):
    """Measurement of one process.

    Attributes:
        kind: "time" or "memory".
        case: one of `cores.CORES`, or "torch dense" for memory.
        length: T.
        whole_layers: whether to measure layers instead of cores.
        modes: modes of `MODES` to measure.
        remat: whether to measure the memory of the rematerialized subject.
        repeats: number of timing rounds.
    """

    kind: str
    case: str
    length: int
    whole_layers: bool = False
    modes: tuple = ()
    remat: bool = False
    repeats: int = 5


def environment(wanted, backend):
    """Return the environment variables for the process of a `Measurement`."""
    give_back = wanted.kind == "memory" and wanted.modes != ("graph",)
    return {**ENVIRONMENT, **(GIVE_BACK if give_back else {}), "KERAS_BACKEND": backend}


def has_remat(case, whole_layers):
    """Return whether a case can be rematerialized: all layers of this library, and cores with independent heads."""
    return case != DENSE and (whole_layers or case not in NOT_ALONE)


def measure(wanted):
    """Return the result of a `Measurement`: {pass: seconds} or {"bytes": int}, or {"skipped": reason}."""
    if wanted.kind not in ("time", "memory"):
        raise ValueError(f"`kind` must be 'time' or 'memory'. Received: kind={wanted.kind!r}.")
    from benchmarks import memory, subjects

    sizes, free = subjects.Sizes(wanted.length), memory.available()
    needed = _dense_bytes(sizes)
    if wanted.case == DENSE and free is not None and needed > free:
        return {"skipped": f"needs about {needed / 1e9:.0f} GB of memory, {free / 1e9:.0f} GB are free"}
    if wanted.kind == "time":
        # The arrays of several programs exist at the same time.
        has_room = free is None or len(wanted.modes) * 2 * needed <= free
        return least_seconds(_timed_steps(wanted, sizes, beside_dense=has_room), wanted.repeats)
    if not memory.can_measure():
        return {"skipped": "the peak memory cannot be read on this system"}
    _memory_step(wanted, subjects.Sizes(WARM_UP, span=16)).run()
    step = _memory_step(wanted, sizes)
    step.prepare()
    if wanted.modes != ("graph",):
        step.run()  # the first call compiles, which needs additional memory
    return {"bytes": memory.peak_above_now(step.run)}


def _dense_bytes(sizes):
    """Return a lower bound of the bytes of dense attention that stores scores: four arrays of all pairs."""
    return 4 * 4 * sizes.num_heads * sizes.length**2


def _subject(wanted, sizes, remat):
    from benchmarks import subjects

    make = subjects.layer_subject if wanted.whole_layers else subjects.core_subject
    return make(wanted.case, sizes, remat)


def _timed_steps(wanted, sizes, beside_dense):
    """Return {name of a pass: `Step`} for the case in all modes, and for dense attention.

    Dense layers store the scores of all pairs and are included only with `beside_dense`. Dense cores do not store
    scores and are always included.
    """
    from benchmarks import steps, subjects

    timed = {}
    for mode in wanted.modes:
        for backward in (False, True):
            timed[_name(mode, backward)] = steps.step_of(_subject(wanted, sizes, False), mode, backward)
        if has_remat(wanted.case, wanted.whole_layers):
            timed[f"{mode} remat"] = steps.step_of(_subject(wanted, sizes, True), mode, True)
    if wanted.whole_layers and wanted.case != DENSE and beside_dense:
        for mode in wanted.modes:
            for backward in (False, True):
                dense = subjects.layer_subject(DENSE, sizes)
                timed[f"dense {_name(mode, backward)}"] = steps.step_of(dense, mode, backward)
    if not wanted.whole_layers:
        for backward in (False, True):
            dense = steps.torch_step(subjects.heads_of(sizes), backward)
            if dense is not None:
                timed[f"dense {_name('torch', backward)}"] = dense
    return timed


def _name(mode, backward):
    return f"{mode} both" if backward else f"{mode} forward"


def _memory_step(wanted, sizes):
    from benchmarks import steps, subjects

    if wanted.case == "torch dense":
        return steps.torch_step(subjects.heads_of(sizes), backward=True)
    return steps.step_of(_subject(wanted, sizes, wanted.remat), wanted.modes[0], backward=True)


def least_seconds(timed, repeats):
    """Return {name: least processor seconds} of steps.

    Each round runs every step once, so that load on the machine affects all steps. Processor time of one thread equals
    wall-clock time on an idle machine and is more stable on a busy one.
    """
    for step in timed.values():
        step.run()
    least = dict.fromkeys(timed, float("inf"))
    for _ in range(repeats):
        for name, step in timed.items():
            start = time.process_time()
            step.run()
            least[name] = min(least[name], time.process_time() - start)
    return least


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    print(json.dumps(measure(Measurement(**{**fields, "modes": tuple(fields["modes"])}))))
