"""Several devices of JAX, of one process or several."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import keras

import tf_sparse_attention as tsa
from tf_sparse_attention.backends import has_tensorflow
from tf_sparse_attention.trainers.shared import clusters
from tf_sparse_attention.trainers.shared.one_device import OneDevice


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
        self._distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)

    @contextlib.contextmanager
    def scope(self) -> Any:
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(self._distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)

    def from_chief(self, values: Sequence[int]) -> list[int]:
        import numpy as np
        from jax.experimental import multihost_utils

        return [int(value) for value in multihost_utils.broadcast_one_to_all(np.asarray(values, "int32"))]

    def split_model(self, num_parts: int) -> None:
        if num_parts < 1 or self.num_replicas % num_parts or not self.is_single_process:
            raise ValueError(
                "`config.train.model_parallel` must divide the devices, and be 1 with several processes. Received: "
                f"model_parallel={num_parts}, {self.num_replicas} devices, {self.num_processes} processes."
            )
        devices = self._distribution.device_mesh.devices.flatten()
        self.num_replicas //= num_parts
        mesh = keras.distribution.DeviceMesh((self.num_replicas, num_parts), ("batch", "model"), devices)
        layouts = tsa.distribution.layout_map(mesh)
        self._distribution = tsa.distribution.ModelParallel(layout_map=layouts, auto_shard_dataset=False)


def has_gpus_in_use() -> bool:
    """Return whether JAX has started and found GPUs; does not initialize JAX."""
    import jax

    config: Any = jax.config  # whose annotations lack its settings
    before = config.jax_num_cpu_devices
    try:
        config.update("jax_num_cpu_devices", 2 if before == 1 else 1)
    except RuntimeError:  # JAX refuses this once it has started
        return any(device.platform == "gpu" for device in jax.devices())
    config.update("jax_num_cpu_devices", before)
    return False


def choose(num_logical_cpus: int) -> OneDevice:
    """Returns the devices of JAX; see `strategy.choose_devices`."""
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
