"""Chooses the devices of a run: one, several GPUs, a TPU, several machines, or several logical CPUs."""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import ml_collections
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.backends import has_tensorflow
from trainers.shared import clusters


class OneDevice:
    """The default device of the backend.

    Attributes:
        num_replicas: copies of the model, each with its part of every batch.
        can_run_alone: whether this process can run the model by itself, outside of training.
        num_processes: processes of the run, each with some of the replicas.
        process_index: which of them this is.
        chief_host: name or address of the machine of process 0, which that one has to know.
    """

    num_replicas = 1
    can_run_alone = True
    num_processes = 1
    process_index = 0
    chief_host = "localhost"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.process_index == 0

    @property
    def is_single_process(self) -> bool:
        """Whether the run has no other processes."""
        return self.num_processes == 1

    def scope(self) -> Any:
        """Context in which models are made, trained and evaluated."""
        return contextlib.nullcontext()

    def distribute(self, make_dataset: Callable) -> Any:
        """Returns the data set for `fit` and `predict`, with each replica's part of every batch.

        Args:
            make_dataset: function of `num_shards`, `shard_index` and `num_parts`, see `tsa.data.shard_rows`.
        """
        return make_dataset()

    def execution(self, jit_compile: bool | None, steps_per_execution: int) -> dict[str, Any]:
        """Returns the arguments of `keras.Model.compile` about execution.

        Args:
            jit_compile: whether to compile with XLA; None: True on one device, False with several TensorFlow
                replicas.
            steps_per_execution: steps in one call of the compiled function.
        """
        # Keras itself leaves XLA to GPUs; on a CPU a step is no slower with it.
        jit_compile = True if jit_compile is None else jit_compile
        return {"jit_compile": jit_compile, "steps_per_execution": steps_per_execution}

    def from_chief(self, values: Sequence[int]) -> list[int]:
        """Returns the values, integers from 0 to 255, that process 0 has, to all processes, which call this together.

        Args:
            values: those of this process; of other processes than 0 only their number counts.
        """
        return list(values)

    def compare_replicas(self, before: int | None) -> None:
        """Says what may differ where a run goes on with another number of replicas.

        Args:
            before: the number that a checkpoint was saved with. None: it does not say.
        """
        if before not in (None, self.num_replicas):
            # Arrays of JAX are those of all devices, and so is what is drawn for them.
            draws = "" if keras.backend.backend() == "jax" else ", and each replica draws its own dropout"
            logging.warning(
                "The checkpoint is one of %d replicas, and this run has %d: batches and mean losses stay the same. "
                "Sums are added up in another order%s, so that the weights differ from those of %d.",
                *(before, self.num_replicas, draws, before),
            )

    def split_model(self, num_parts: int) -> None:
        """Divides each replica of the model among `num_parts` devices, see `tsa.distribution`."""
        raise ValueError(
            "`config.train.model_parallel` must be 1 but with several devices of the JAX backend. "
            f"Received: model_parallel={num_parts}, {keras.backend.backend()} with {self.num_replicas} replicas."
        )


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

    def distribute(self, make_dataset: Callable) -> Any:
        from tf_sparse_attention.data import distribute_batches

        return distribute_batches(self.strategy, make_dataset)

    def execution(self, jit_compile: bool | None, steps_per_execution: int) -> dict[str, Any]:
        # Keras compiles the whole step with the strategy inside, which XLA refuses; a TPU compiles anyway.
        if jit_compile:
            raise ValueError(
                "`config.train.jit_compile` must be False or unset with several TensorFlow replicas. "
                f"Received: jit_compile=True, {self.num_replicas} replicas."
            )
        if steps_per_execution > 1:
            raise ValueError(
                "`config.train.steps_per_execution` must be 1 with several TensorFlow replicas. "
                f"Received: steps_per_execution={steps_per_execution}, {self.num_replicas} replicas."
            )
        return {"jit_compile": False, "steps_per_execution": 1}

    def from_chief(self, values: Sequence[int]) -> list[int]:
        import tensorflow as tf

        def exchange():
            context = tf.distribute.get_replica_context()
            # Of floats, which every collective on every device adds.
            own = tf.constant(values, "float32") * float(context.replica_id_in_sync_group == 0)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        result = self.strategy.experimental_local_results(self.strategy.run(exchange))[0]
        return [int(value) for value in result]


class JaxDevices(OneDevice):
    """Every device of JAX, with replicas of the model and parts of each batch."""

    def __init__(self, devices: Any) -> None:
        import jax

        self.num_replicas = len(devices)
        self.num_processes, self.process_index = jax.process_count(), jax.process_index()
        self.can_run_alone = self.is_single_process
        address = os.environ.get("JAX_COORDINATOR_ADDRESS")
        self.chief_host = address.rpartition(":")[0] if address else clusters.own_host()
        # Each process reads its own rows; Keras would otherwise distribute elements of the data set.
        self._shard = {"num_shards": self.num_processes, "shard_index": self.process_index}
        self._distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)

    @contextlib.contextmanager
    def scope(self) -> Any:
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(self._distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)

    def distribute(self, make_dataset: Callable) -> Any:
        return make_dataset(**self._shard)

    def from_chief(self, values: Sequence[int]) -> list[int]:
        import numpy as np
        from jax.experimental import multihost_utils

        return [int(value) for value in multihost_utils.broadcast_one_to_all(np.asarray(values, "int32"))]

    def split_model(self, num_parts: int) -> None:
        if num_parts < 1 or self.num_replicas % num_parts or not self.is_single_process:
            raise ValueError(
                "`config.train.model_parallel` must divide the devices of one process. "
                f"Received: model_parallel={num_parts}, {self.num_replicas} devices."
            )
        devices = self._distribution.device_mesh.devices.flatten()
        self.num_replicas //= num_parts
        mesh = keras.distribution.DeviceMesh((self.num_replicas, num_parts), ("batch", "model"), devices)
        layouts = tsa.distribution.layout_map(mesh)
        self._distribution = tsa.distribution.ModelParallel(layout_map=layouts, auto_shard_dataset=False)


def choose_devices(config: ml_collections.ConfigDict) -> OneDevice:
    """Returns the devices for a run.

    On TensorFlow: a TPU if there is one, the workers of the variable TF_CONFIG, all GPUs if there are several, else one
    device. On JAX: all devices if there are several, those of other processes among them, see `clusters.JAX_VARIABLES`.

    Args:
        config: the configuration: `train.num_logical_cpus` above 1 divides the CPU into as many logical devices, to
            try several replicas; `train.model_parallel` above 1 divides each replica of the model among as many;
            `data.batch_size` is checked.

    Raises:
        ValueError: If a batch cannot be divided by the replicas, or the model among devices, or the logical CPUs cannot
            be created any more.
    """
    choose_by_backend = {"tensorflow": _choose_tensorflow, "jax": _choose_jax}.get(keras.backend.backend())
    if choose_by_backend is None:
        raise ValueError(f"`KERAS_BACKEND` must be tensorflow or jax. Received: {keras.backend.backend()}.")
    devices = choose_by_backend(config.train.num_logical_cpus)
    if config.train.model_parallel != 1:
        devices.split_model(config.train.model_parallel)
    if config.data.batch_size % devices.num_replicas:
        raise ValueError(
            "`config.data.batch_size` must be divisible by the number of replicas. "
            f"Received: batch_size={config.data.batch_size}, {devices.num_replicas} replicas."
        )
    return devices


def make_deterministic(jit_compile: bool | None) -> None:
    """Makes runs on this machine reproducible bit for bit. Must be called before the first operation.

    Args:
        jit_compile: whether the steps are compiled with XLA, which has a switch of its own: under TensorFlow's switch
            Keras compiles nothing.
    """
    if keras.backend.backend() == "tensorflow" and not jit_compile:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif "xla_gpu_deterministic_ops" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()


def _choose_tensorflow(num_logical_cpus):
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

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _choose_jax(num_logical_cpus):
    import jax

    if has_tensorflow():
        import tensorflow as tf

        # TensorFlow only reads the data here, and must not allocate accelerator memory.
        for kind in ("GPU", "TPU"):
            with contextlib.suppress(RuntimeError, ValueError):
                tf.config.set_visible_devices([], kind)
    clusters.join_jax_processes()
    if num_logical_cpus > 1:
        with contextlib.suppress(RuntimeError):  # JAX is initialized already: its devices are fixed.
            jax.config.update("jax_num_cpu_devices", num_logical_cpus)
    devices = jax.devices()
    if len(devices) < num_logical_cpus:
        raise ValueError(
            "`config.train.num_logical_cpus` must be at most the devices that JAX has once it is initialized. "
            f"Received: num_logical_cpus={num_logical_cpus}, {len(devices)} devices."
        )
    return OneDevice() if len(devices) == 1 else JaxDevices(keras.distribution.list_devices())
