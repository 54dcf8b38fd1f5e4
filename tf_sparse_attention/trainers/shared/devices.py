"""The devices of a run: one, several GPUs, a TPU, several machines, or several logical CPUs."""

import contextlib
import functools
import json
import os
import signal
from typing import Any

import keras
import ml_collections
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.backends import has_tensorflow
from tf_sparse_attention.checks import check_choice

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
# Several processes of JAX: address of the first process, number of processes, index of this process.
JAX_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
HEARTBEAT_TIMEOUT = 20  # seconds without a heartbeat after which JAX ends the other processes of a run
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


class OneDevice:
    """The default device of the backend."""

    num_replicas = 1  # copies of the model; each has a part of every batch
    can_run_alone = True  # whether this process can run the model without other processes, outside of training
    can_show = True  # whether this process can show samples of the model during training
    num_processes = 1  # of the run; each has some of the replicas
    process_index = 0

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.process_index == 0

    def wait_for_others(self, reason: str) -> None:
        """Wait for all processes with parts of the run's arrays. `reason` is the name of the barrier."""

    @property
    def is_single_process(self) -> bool:
        return self.num_processes == 1

    def scope(self) -> Any:
        """Return the context for creating, training and evaluating models."""
        return contextlib.nullcontext()

    def dataset(self, batches: tsa.data.Batches, start: int, stop: int) -> Any:
        """Return the data set of this process for `fit` and `predict`: batches from `start`, excluding `stop`."""
        return batches.dataset(start, stop)  # TensorFlow divides it among processes

    def execution(self, jit_compile: bool | None, steps_per_execution: int) -> dict[str, Any]:
        """Return the arguments of `keras.Model.compile` about execution.

        `jit_compile`: whether to compile with XLA. None: True, except for several TensorFlow replicas.
        """
        # By default, Keras uses XLA on GPUs only. On CPUs, XLA does not slow down a step.
        jit_compile = True if jit_compile is None else jit_compile
        return {"jit_compile": jit_compile, "steps_per_execution": steps_per_execution}

    def check_accumulation(self, num_steps: int | None) -> None:
        """Raise a `ValueError` if gradients cannot be accumulated over `num_steps`. None: no accumulation."""

    def signals_to_handle(self) -> tuple[signal.Signals, ...]:
        """Return the signals for which this process installs a handler."""
        return SIGNALS

    def agree_on_signal(self, received: signal.Signals | None, step: int) -> signal.Signals | None:
        """Agree with all processes on a signal to stop at this step. Return it, or None to continue.

        All processes must call this after each execution. `received`: the signal of this process, or None.
        """
        return received

    def warn_if_replicas_differ(self, before: int | None) -> None:
        """Log a warning if the number of replicas differs from `before`, the number of the checkpoint."""
        if before not in (None, self.num_replicas):
            # On JAX, random numbers do not depend on the number of devices.
            draws = "" if keras.backend.backend() == "jax" else ", and each replica draws its own dropout"
            logging.warning(
                "The checkpoint was written with %d replicas, and this run has %d. Batches and mean losses are the "
                "same, but sums have a different order%s, so weights will differ slightly.",
                *(before, self.num_replicas, draws),
            )

    def split_model(self, num_parts: int) -> None:
        """Divide each replica of the model among `num_parts` devices, see `tsa.distribution`."""
        raise ValueError(
            "`config.train.model_parallel` must be 1, unless JAX (KERAS_BACKEND=jax) has several devices. "
            f"Received: model_parallel={num_parts}, {keras.backend.backend()} with {self.num_replicas} replicas."
        )


class TensorFlowReplicas(OneDevice):
    """Replicas of a `tf.distribute.Strategy`."""

    can_run_alone = False

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        self.num_processes, self.process_index = _tensorflow_processes(strategy.cluster_resolver)

    def scope(self) -> Any:
        return self.strategy.scope()

    def execution(self, jit_compile: bool | None, steps_per_execution: int) -> dict[str, Any]:
        # Keras would compile the whole step including the strategy. XLA rejects this. TPUs always compile.
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
                "with several TensorFlow replicas. Multiply config.data.batch_size by this number and set `remat` if "
                "memory is short, or train on JAX (KERAS_BACKEND=jax). "
                f"Received: gradient_accumulation_steps={num_steps}, {self.num_replicas} replicas."
            )

    def agree_on_signal(self, received: signal.Signals | None, step: int) -> signal.Signals | None:
        if self.is_single_process:
            return received
        import tensorflow as tf

        def count():
            counts = tf.constant([float(received == number) for number in SIGNALS])
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, counts)

        counts = self.strategy.experimental_local_results(self.strategy.run(count))[0].numpy()
        return next((number for number, count in zip(SIGNALS, counts, strict=True) if count), None)


class JaxDevices(OneDevice):
    """All devices of JAX, with replicas of the model and parts of each batch."""

    def __init__(self, devices: Any) -> None:
        import jax

        self.num_replicas = len(devices)
        self.num_processes, self.process_index = jax.process_count(), jax.process_index()
        self.can_run_alone = self.can_show = self.is_single_process
        # Each process reads only its rows. With auto-sharding, Keras would distribute elements of the data set.
        self._distribution: Any = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)

    def dataset(self, batches: tsa.data.Batches, start: int, stop: int) -> Any:
        # The rows of the replicas of this process. Processes that share a split replica read the same rows.
        mesh = self._distribution.device_mesh.backend_mesh.devices.reshape(self.num_replicas, -1)
        processes = [{device.process_index for device in parts} for parts in mesh]
        replicas = [number for number, indices in enumerate(processes) if self.process_index in indices]
        return batches.shard(replicas[0] // len(replicas), self.num_replicas // len(replicas)).dataset(start, stop)

    def wait_for_others(self, reason: str) -> None:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(reason)

    @contextlib.contextmanager
    def scope(self) -> Any:
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(self._distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)

    def signals_to_handle(self) -> tuple[signal.Signals, ...]:
        # JAX's preemption service handles SIGTERM.
        return SIGNALS if self.is_single_process else tuple(set(SIGNALS) - {signal.SIGTERM})

    def agree_on_signal(self, received: signal.Signals | None, step: int) -> signal.Signals | None:
        if self.is_single_process:
            return received
        from jax.experimental import multihost_utils

        if received is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(step) else None

    def split_model(self, num_parts: int) -> None:
        per_process = self.num_replicas // self.num_processes
        if num_parts < 1 or self.num_replicas % num_parts or (per_process % num_parts and num_parts % per_process):
            raise ValueError(
                "`config.train.model_parallel` must divide the number of devices, and divide or be a multiple of "
                f"the number per process. Received: model_parallel={num_parts}, {self.num_replicas} devices, "
                f"{self.num_processes} processes."
            )
        devices = self._distribution.device_mesh.devices.flatten()
        self.num_replicas //= num_parts
        mesh = keras.distribution.DeviceMesh((self.num_replicas, num_parts), ("batch", "model"), devices)
        layouts = tsa.distribution.layout_map(mesh)
        self._distribution = tsa.distribution.ModelParallel(layout_map=layouts, auto_shard_dataset=False)


def choose_devices(config: ml_collections.ConfigDict) -> OneDevice:
    """Return the devices of a run.

    On TensorFlow: a TPU, the workers in the variable TF_CONFIG, several GPUs, or one device, in this order. On JAX: all
    devices, including those of other processes, see `JAX_VARIABLES`. A `ValueError` names settings that do not fit
    them.
    """
    backend, choose = keras.backend.backend(), {"tensorflow": _choose_tensorflow_devices, "jax": _choose_jax_devices}
    check_choice("KERAS_BACKEND", backend, choose)
    if config.train.deterministic:
        _make_xla_deterministic(backend)  # XLA reads its flags when devices are initialized
    devices = choose[backend](config.train.num_logical_cpus)
    if config.train.model_parallel != 1:
        devices.split_model(config.train.model_parallel)
    if config.data.batch_size % devices.num_replicas:
        raise ValueError(
            "`config.data.batch_size` must be divisible by the number of replicas. "
            f"Received: batch_size={config.data.batch_size}, {devices.num_replicas} replicas."
        )
    return devices


def make_deterministic(jit_compile: bool | None) -> None:
    """Make TensorFlow's own operations reproducible bit for bit. Must be called before the first operation."""
    # With XLA, `choose_devices` sets XLA's flag instead, since TensorFlow's switch prevents compilation.
    if keras.backend.backend() == "tensorflow" and not jit_compile:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()


def _make_xla_deterministic(backend):
    """Set XLA's flag for deterministic GPU operations, unless the environment sets it."""
    before = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" in before:
        return
    if backend == "jax" and _jax_uses_gpus():
        raise ValueError(
            "`config.train.deterministic` must be False in a process that has used a GPU with JAX: train in a new "
            f"process, or set XLA_FLAGS={DETERMINISTIC} before. Received: deterministic=True, XLA_FLAGS={before!r}."
        )
    os.environ["XLA_FLAGS"] = f"{before} {DETERMINISTIC}".strip()


def _jax_uses_gpus():
    """Return whether JAX is initialized and has GPUs, without initializing JAX."""
    import jax

    config: Any = jax.config  # the annotations of `jax.config` lack its settings
    before = config.jax_num_cpu_devices
    try:
        config.update("jax_num_cpu_devices", 2 if before == 1 else 1)
    except RuntimeError:  # JAX is initialized
        return any(device.platform == "gpu" for device in jax.devices())
    config.update("jax_num_cpu_devices", before)
    return False


def _choose_jax_devices(num_logical_cpus):
    import jax

    if has_tensorflow():
        import tensorflow as tf

        # Here, TensorFlow only reads data. It must not allocate accelerator memory.
        for kind in ("GPU", "TPU"):
            with contextlib.suppress(RuntimeError, ValueError):
                tf.config.set_visible_devices([], kind)
    join_jax_processes()
    if num_logical_cpus > 1:
        with contextlib.suppress(RuntimeError):  # JAX is initialized: its devices are fixed
            jax.config.update("jax_num_cpu_devices", num_logical_cpus)
    devices = jax.devices()
    if len(devices) < num_logical_cpus:
        raise ValueError(
            "`config.train.num_logical_cpus` must be at most the number of devices of JAX after initialization. "
            f"Received: num_logical_cpus={num_logical_cpus}, {len(devices)} devices."
        )
    return OneDevice() if len(devices) == 1 else JaxDevices(keras.distribution.list_devices())


def join_jax_processes() -> None:
    """Join the other processes of JAX if the environment has `JAX_VARIABLES`."""
    import jax

    variables = {name: os.environ.get(name, "") for name in JAX_VARIABLES}
    address, number, index = variables.values()
    if jax.distributed.is_initialized() or not (address or number or index):
        return
    if number == "auto":  # JAX detects TPU pods, Slurm and Open MPI
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
        except ValueError as error:
            raise ValueError(
                "`JAX_NUM_PROCESSES`, an environment variable, must be a number (with JAX_COORDINATOR_ADDRESS and "
                "JAX_PROCESS_ID) or unset, unless JAX finds a TPU pod, Slurm or Open MPI. "
                f"Received: JAX_NUM_PROCESSES=auto ({error})."
            ) from error
        return
    port = address.rpartition(":")[2]  # JAX waits minutes for an invalid address
    counts_are_right = number.isdigit() and index.isdigit() and int(index) < int(number)
    if not (":" in address and port.isdigit() and int(port) < 1 << 16 and counts_are_right):
        raise ValueError(
            f"`{', '.join(JAX_VARIABLES)}`, environment variables, must be HOST:PORT of process 0, the number of "
            "processes, and the index of this process, from 0; or JAX_NUM_PROCESSES=auto; or unset. "
            f"Received: {', '.join(f'{name}={value}' for name, value in variables.items())}."
        )
    jax.distributed.initialize(address, int(number), int(index), heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)


def _choose_tensorflow_devices(num_logical_cpus):
    import tensorflow as tf

    if num_logical_cpus > 1:
        return TensorFlowReplicas(mirrored_cpus(num_logical_cpus))
    if os.environ.get("TPU_NAME") == "":
        raise ValueError(
            "`TPU_NAME`, an environment variable, must be the name of a TPU, or local for a TPU of this machine, or "
            "unset (unset TPU_NAME). Received: an empty string."
        )
    if "TPU_NAME" in os.environ or tf.config.list_physical_devices("TPU"):
        return TensorFlowReplicas(_connect_to_tpu(os.environ.get("TPU_NAME", "local")))
    if _num_tensorflow_workers() > 1:
        return TensorFlowReplicas(tf.distribute.MultiWorkerMirroredStrategy())
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return TensorFlowReplicas(tf.distribute.MirroredStrategy())
    return OneDevice()


@functools.cache  # collectives of two strategies over the same devices interfere
def mirrored_cpus(number: int) -> Any:
    """Return the cached `MirroredStrategy` over logical CPUs, and create the CPUs if possible."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is initialized: its devices are fixed
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
    devices = tf.config.list_logical_devices("CPU")
    if len(devices) < number:
        raise ValueError(
            "`config.train.num_logical_cpus` must be at most the number of devices of TensorFlow after "
            f"initialization. Received: num_logical_cpus={number}, {len(devices)} devices."
        )
    return tf.distribute.MirroredStrategy([device.name for device in devices[:number]])


def _connect_to_tpu(name):
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            "`TPU_NAME`, an environment variable, must be the name of a reachable TPU, or local for a TPU of this "
            f"machine, or unset. Received: TPU_NAME={name} ({reason})."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _num_tensorflow_workers():
    """Return the number of workers in the variable TF_CONFIG, including a chief."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return len([*cluster.get("chief", []), *cluster.get("worker", [])])
    except (ValueError, AttributeError) as error:
        raise ValueError(
            "`TF_CONFIG`, an environment variable, must be JSON with a cluster of workers, or unset. "
            f"Received: {os.environ['TF_CONFIG']} ({error})."
        ) from error


def _tensorflow_processes(resolver):
    """Return the number of processes of a TensorFlow cluster, and the index of this process. The chief is first."""
    if getattr(resolver, "task_type", None) not in ("chief", "worker"):
        return 1, 0
    jobs = resolver.cluster_spec().as_dict()
    num_chiefs = len(jobs.get("chief", []))
    index = resolver.task_id + (num_chiefs if resolver.task_type == "worker" else 0)
    return num_chiefs + len(jobs.get("worker", [])), index
