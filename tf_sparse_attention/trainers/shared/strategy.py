"""Chooses the devices of a run: one, several GPUs, a TPU, several machines, or several logical CPUs."""

import os

import keras
import ml_collections

from tf_sparse_attention.trainers.shared import jax_devices, tensorflow_devices
from tf_sparse_attention.trainers.shared.one_device import OneDevice

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
CHOOSE = {"tensorflow": tensorflow_devices.choose, "jax": jax_devices.choose}


def choose_devices(config: ml_collections.ConfigDict) -> OneDevice:
    """Returns the devices for a run.

    On TensorFlow: a TPU if there is one, the workers of the variable TF_CONFIG, all GPUs if there are several, else one
    device. On JAX: all devices if there are several, those of other processes among them, see `clusters.JAX_VARIABLES`.

    Args:
        config: the configuration: `train.num_logical_cpus` above 1 divides the CPU into as many logical devices, to
            try several replicas; `train.model_parallel` above 1 divides each replica of the model among as many;
            `data.batch_size` is checked; `train.deterministic` makes XLA's operations reproducible.

    Raises:
        ValueError: If a batch cannot be divided by the replicas, or the model among devices, or the logical CPUs cannot
            be created any more, or JAX has used a GPU already and `train.deterministic` would have no effect.
    """
    backend = keras.backend.backend()
    if backend not in CHOOSE:
        raise ValueError(f"`KERAS_BACKEND` must be tensorflow or jax. Received: {backend}.")
    if config.train.deterministic:
        _make_xla_deterministic(backend)  # before there are devices, with which XLA reads its flags
    devices = CHOOSE[backend](config.train.num_logical_cpus)
    if config.train.model_parallel != 1:
        devices.split_model(config.train.model_parallel)
    if config.data.batch_size % devices.num_replicas:
        raise ValueError(
            "`config.data.batch_size` must be divisible by the number of replicas. "
            f"Received: batch_size={config.data.batch_size}, {devices.num_replicas} replicas."
        )
    return devices


def make_deterministic(jit_compile: bool | None) -> None:
    """Make TensorFlow's own operations reproducible bit for bit. Must be called before the first operation.

    Args:
        jit_compile: whether the steps are compiled with XLA, which has a flag of its own, see `choose_devices`: under
            TensorFlow's switch Keras compiles nothing.
    """
    if keras.backend.backend() == "tensorflow" and not jit_compile:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()


def _make_xla_deterministic(backend):
    """Set the flag of XLA for GPUs, unless the environment has one."""
    before = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" in before:
        return
    if backend == "jax" and jax_devices.has_gpus_in_use():
        raise ValueError(
            "`config.train.deterministic` must be False in a process that has used a GPU with JAX: train in a new one, "
            f"or set XLA_FLAGS={DETERMINISTIC} before. Received: deterministic=True, XLA_FLAGS={before!r}."
        )
    os.environ["XLA_FLAGS"] = f"{before} {DETERMINISTIC}".strip()
