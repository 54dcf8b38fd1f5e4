"""One measurement in a process of its own: `python -m benchmarks.worker JSON` prints a JSON object.

The process that starts it chooses backend and threads through the environment (`ENVIRONMENT`), before anything is
imported, and sends the fields of a `Measurement`.
"""

import json
import sys
import time
from typing import NamedTuple

MODES = {"tensorflow": ("graph", "xla"), "jax": ("jit",)}  # the ways a backend compiles
# One thread everywhere, so that processor time is what the work costs and not what the machine has.
ENVIRONMENT = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
}
# TensorFlow's allocator with oneDNN keeps what it once took, and so does malloc with small pieces. In graph mode that
# is part of the answer, and the first call is measured. The first call of a compiled program compiles it too, so the
# second is measured, for which everything must have been given back.
GIVE_BACK = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "131072"}
DENSE = "keras dense"
# Cores whose heads are of two kinds or belong together, which cannot be computed one head at a time.
NOT_ALONE = ("strided", "fixed", "local, grouped", "selected, grouped")
WARM_UP = 64  # positions of the call that loads libraries before memory is measured


class Measurement(NamedTuple):
    """What one process measures.

    Attributes:
        kind: "time" or "memory".
        case: one of `cores.CORES`, or "torch dense" for memory.
        length: T.
        whole_layers: whether layers are measured rather than cores.
        modes: those of `MODES` to measure.
        remat: memory of the rematerialised subject.
        repeats: rounds of timing.
    """

    kind: str
    case: str
    length: int
    whole_layers: bool = False
    modes: tuple = ()
    remat: bool = False
    repeats: int = 5


def environment(wanted, backend):
    """Return the variables that the process of a `Measurement` needs."""
    give_back = wanted.kind == "memory" and wanted.modes != ("graph",)
    return {**ENVIRONMENT, **(GIVE_BACK if give_back else {}), "KERAS_BACKEND": backend}


def has_remat(case, whole_layers):
    """Return whether there is a rematerialised form to measure: of all our layers, of cores with heads alike."""
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
        # The arrays of several programs are there at once.
        has_room = free is None or len(wanted.modes) * 2 * needed <= free
        return least_seconds(_timed_steps(wanted, sizes, beside_dense=has_room), wanted.repeats)
    if not memory.can_measure():
        return {"skipped": "the peak of memory cannot be read on this system"}
    _memory_step(wanted, subjects.Sizes(WARM_UP, span=16)).run()
    step = _memory_step(wanted, sizes)
    step.prepare()
    if wanted.modes != ("graph",):
        step.run()  # the first call compiles, which takes memory of its own
    return {"bytes": memory.peak_above_now(step.run)}


def _dense_bytes(sizes):
    """Return a lower bound of what dense attention takes that keeps its scores: four arrays of all pairs."""
    return 4 * 4 * sizes.num_heads * sizes.length**2


def _subject(wanted, sizes, remat):
    from benchmarks import subjects

    make = subjects.layer_subject if wanted.whole_layers else subjects.core_subject
    return make(wanted.case, sizes, remat)


def _timed_steps(wanted, sizes, beside_dense):
    """Return {name of a pass: its `Step`}: the case in all its modes, and the dense attention beside it.

    Dense layers, which keep the scores of all pairs, are left out unless `beside_dense`; dense cores do not.
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
    """Return {name: least processor seconds of this process} of some steps.

    Each round runs every step once, so that a busy moment of the machine meets all of them. Processor time rather than
    the clock's: with one thread they are equal on an idle machine, and on a busy one the first is steadier.
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
