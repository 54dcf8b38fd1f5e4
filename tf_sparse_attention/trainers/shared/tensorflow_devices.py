"""Replicas of TensorFlow: a TPU, several GPUs, several machines, or several logical CPUs."""

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

from tf_sparse_attention.trainers.shared import clusters
from tf_sparse_attention.trainers.shared.one_device import OneDevice


class TensorFlowReplicas(OneDevice):
    """Replicas of a `tf.distribute.Strategy`."""

    can_run_alone = False

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        addresses, self.process_index = clusters.processes_of(strategy.cluster_resolver)
        self.num_processes, self.chief_host = len(addresses), addresses[0].rpartition(":")[0]

    def scope(self) -> Any:
        return self.strategy.scope()

    def execution(self, jit_compile: bool | None, steps_per_execution: int) -> dict[str, Any]:
        # Keras compiles the whole step with the strategy inside, which XLA refuses; a TPU compiles anyway.
        if jit_compile:
            raise ValueError(
                "`config.train.jit_compile` must be False or unset with several TensorFlow replicas. "
                f"Received: jit_compile=True, {self.num_replicas} replicas."
            )
        if steps_per_execution > 1:
            raise ValueError(
                "`config.train.steps_per_execution` must be 1 with several TensorFlow replicas: Keras runs one step at "
                "a time there. Leave it unset, or train on JAX (KERAS_BACKEND=jax). "
                f"Received: steps_per_execution={steps_per_execution}, {self.num_replicas} replicas."
            )
        return {"jit_compile": False, "steps_per_execution": 1}

    def check_accumulation(self, num_steps: int | None) -> None:
        if num_steps is not None:
            raise ValueError(
                "`config.optimizer.gradient_accumulation_steps` must be unset: Keras does not support accumulation "
                "with several TensorFlow replicas. Multiply config.data.batch_size by it and set `remat` if memory is "
                "short, or train on JAX (KERAS_BACKEND=jax). "
                f"Received: gradient_accumulation_steps={num_steps}, {self.num_replicas} replicas."
            )

    def from_chief(self, values: Sequence[int]) -> list[int]:
        import tensorflow as tf

        def exchange():
            context = tf.distribute.get_replica_context()
            # Of floats, which every collective on every device adds.
            own = tf.constant(values, "float32") * float(context.replica_id_in_sync_group == 0)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        result = self.strategy.experimental_local_results(self.strategy.run(exchange))[0]
        return [int(value) for value in result]


def choose(num_logical_cpus: int) -> OneDevice:
    """Returns the devices of TensorFlow; see `strategy.choose_devices`."""
    import tensorflow as tf

    if num_logical_cpus > 1:
        return TensorFlowReplicas(mirrored_cpus(num_logical_cpus))
    if os.environ.get("TPU_NAME") == "":
        raise ValueError(
            "`TPU_NAME`, a variable of the environment, must be the name of a TPU, local on a machine that has one, or "
            "unset (unset TPU_NAME). Received: an empty one."
        )
    if "TPU_NAME" in os.environ or tf.config.list_physical_devices("TPU"):
        return TensorFlowReplicas(_connect_to_tpu(os.environ.get("TPU_NAME", "local")))
    if len(clusters.tensorflow_workers()) > 1:
        return TensorFlowReplicas(tf.distribute.MultiWorkerMirroredStrategy())
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return TensorFlowReplicas(tf.distribute.MirroredStrategy())
    return OneDevice()


@functools.cache  # Collectives of two strategies over the same devices of one process interfere.
def mirrored_cpus(number: int) -> Any:
    """Returns the one `MirroredStrategy` of this process over this many logical CPUs, which are created if possible."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy([device.name for device in _logical_cpus(number)])


def _logical_cpus(number):
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is initialized already: its devices are fixed.
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
    devices = tf.config.list_logical_devices("CPU")
    if len(devices) < number:
        raise ValueError(
            "`config.train.num_logical_cpus` must be at most the devices that TensorFlow has once it is initialized. "
            f"Received: num_logical_cpus={number}, {len(devices)} devices."
        )
    return devices[:number]


def _connect_to_tpu(name):
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            "`TPU_NAME`, a variable of the environment, must be the name of a TPU that answers, local on a machine "
            f"that has one, or unset. Received: TPU_NAME={name} ({reason})."
        ) from error
    return tf.distribute.TPUStrategy(resolver)
