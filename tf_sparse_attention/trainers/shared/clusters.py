"""Which processes a run has: of TensorFlow those of TF_CONFIG, of JAX those of three variables of the environment."""

import contextlib
import json
import os
import socket
from typing import Any

# Of several processes of JAX: the address of the first one, how many there are, and which one this is.
JAX_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def tensorflow_workers() -> list[str]:
    """Returns the addresses of all workers that the variable TF_CONFIG names, a chief among them."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return [*cluster.get("chief", []), *cluster.get("worker", [])]
    except (ValueError, AttributeError) as error:
        raise ValueError(
            "`TF_CONFIG`, a variable of the environment, must be JSON with a cluster of workers, or unset. "
            f"Received: {os.environ['TF_CONFIG']} ({error})."
        ) from error


def processes_of(resolver: Any) -> tuple[list[str], int]:
    """Returns the addresses of all processes of a TensorFlow cluster, the chief's first, and the index of this one.

    Args:
        resolver: of `tf.distribute.Strategy`. None or one without workers: there is only this process.
    """
    if getattr(resolver, "task_type", None) not in ("chief", "worker"):
        return [":"], 0
    jobs = resolver.cluster_spec().as_dict()
    chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
    return [*chiefs, *workers], resolver.task_id + (len(chiefs) if resolver.task_type == "worker" else 0)


def join_jax_processes() -> None:
    """Makes this process one of several of JAX, if the environment has `JAX_VARIABLES`.

    Raises:
        ValueError: If they do not say which one, or JAX does not find it where they leave that to it.
    """
    import jax

    found = {name: os.environ.get(name, "") for name in JAX_VARIABLES}
    address, number, index = found.values()
    if jax.distributed.is_initialized() or not (address or number or index):
        return
    # Its own handler would take SIGTERM, which `callbacks.StopOnSignal` waits for.
    with contextlib.suppress(AttributeError):  # JAX 0.7 has no such setting.
        jax.config.update("jax_enable_preemption_service", False)
    if number == "auto":  # of a TPU pod, Slurm or Open MPI
        try:
            jax.distributed.initialize()
        except ValueError as error:
            raise ValueError(
                "`JAX_NUM_PROCESSES`, a variable of the environment, must be a number, beside JAX_COORDINATOR_ADDRESS "
                "and JAX_PROCESS_ID, or unset, where JAX finds no cluster: of a TPU pod, Slurm or Open MPI. "
                f"Received: JAX_NUM_PROCESSES=auto ({error})."
            ) from error
        return
    port = address.rpartition(":")[2]  # of a wrong one JAX waits for minutes
    counts_are_right = number.isdigit() and index.isdigit() and int(index) < int(number)
    if not (":" in address and port.isdigit() and int(port) < 1 << 16 and counts_are_right):
        raise ValueError(
            f"`{', '.join(JAX_VARIABLES)}`, variables of the environment, must be HOST:PORT of process 0, the number "
            "of processes, and which one this is, from 0; or JAX_NUM_PROCESSES=auto where JAX finds them; or unset. "
            f"Received: {', '.join(f'{name}={value}' for name, value in found.items())}."
        )
    jax.distributed.initialize(address, int(number), int(index))


def own_host() -> str:
    """Returns the address that this machine has for others."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # Nothing is sent; it only finds from where it would be.
        return probe.getsockname()[0]
    return socket.gethostname()
