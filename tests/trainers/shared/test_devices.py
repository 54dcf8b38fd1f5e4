"""Devices of a run."""

import json
import re
import signal

import keras
import pytest
import tensorflow as tf

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import devices as trainer_devices
from tf_sparse_attention.trainers.shared import training
from tf_sparse_attention.trainers.shared.devices import OneDevice, TensorFlowReplicas, choose_devices


def make_config(num_logical_cpus=1, batch_size=8):
    config = base.get_config()
    config.train.num_logical_cpus = num_logical_cpus
    config.data.batch_size = batch_size
    return config


@pytest.fixture
def two_replicas():
    return choose_devices(make_config(num_logical_cpus=2))


def test_one_cpu_is_one_device():
    devices = choose_devices(make_config())
    assert type(devices) is OneDevice
    assert (devices.num_replicas, devices.is_chief) == (1, True)


def test_one_device_compiles_with_xla_by_default():
    one = OneDevice()
    assert one.execution(None, 4) == {"jit_compile": True, "steps_per_execution": 4}
    assert one.execution(False, 1)["jit_compile"] is False


CHOOSE_DEVICES = """
import pathlib, sys
from tf_sparse_attention.backends import has_tensorflow
has_tensorflow()
import jax
{before}
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared.devices import choose_devices
choose_devices(base.get_config())
jax.jit(lambda x: x + 1)(1.0)
options = [path.read_text() for path in pathlib.Path({folder!r}).glob("*debug_options")]
print(bool(options) and all("xla_gpu_deterministic_ops: true" in text for text in options))
"""


@pytest.mark.parametrize(
    ("before", "has_effect"), [("", True), pytest.param("jax.devices()", False, marks=pytest.mark.full)]
)
def test_a_deterministic_run_on_jax_has_xla_s_flag_before_there_are_devices(run_python, tmp_path, before, has_effect):
    code = CHOOSE_DEVICES.format(before=before, folder=str(tmp_path))
    printed = run_python(code, KERAS_BACKEND="jax", XLA_FLAGS=f"--xla_dump_to={tmp_path}")
    assert printed.split()[-1] == str(has_effect)


def test_a_deterministic_run_after_jax_has_used_a_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(trainer_devices, "_jax_uses_gpus", lambda: True)
    monkeypatch.setenv("XLA_FLAGS", "--xla_abc=1")
    with pytest.raises(ValueError, match=r"`config.train.deterministic` must be False in .* XLA_FLAGS='--xla_abc=1'"):
        choose_devices(make_config())


def test_two_logical_cpus_are_two_replicas(two_replicas):
    assert (two_replicas.num_replicas, two_replicas.is_chief) == (2, True)
    with two_replicas.scope():
        assert tf.distribute.get_strategy() is two_replicas.strategy


def test_several_replicas_are_never_compiled_with_xla(two_replicas):
    assert two_replicas.execution(None, 1) == {"jit_compile": False, "steps_per_execution": 1}
    with pytest.raises(ValueError, match=r"`config.train.jit_compile` must be False or unset .*Received: .*2 replicas"):
        two_replicas.execution(True, 1)


def test_several_replicas_run_one_step_at_a_time(two_replicas):
    message = r"`config.train.steps_per_execution` must be 1 .* Leave it unset.* Received: .*=5, 2 replicas"
    with pytest.raises(ValueError, match=message):
        two_replicas.execution(None, 5)


def test_several_replicas_accumulate_no_gradients(make_plain_config, tmp_path):
    config = make_plain_config()
    config.train.num_logical_cpus = 2
    config.optimizer.gradient_accumulation_steps = 4
    message = (
        r"`config.optimizer.gradient_accumulation_steps` must be unset: .* Multiply config.data.batch_size .*=4, 2 rep"
    )
    with pytest.raises(ValueError, match=message):
        training.train(config, tmp_path)


def test_a_batch_size_that_is_not_divisible_is_an_error():
    with pytest.raises(ValueError, match=r"`config.data.batch_size` must be divisible .*batch_size=7, 2 replicas"):
        choose_devices(make_config(num_logical_cpus=2, batch_size=7))


def test_more_logical_cpus_than_a_started_tensorflow_has_is_an_error():
    tf.config.list_logical_devices()
    with pytest.raises(ValueError, match=r"`config.train.num_logical_cpus` must be at most .*=64, 2 devices"):
        choose_devices(make_config(num_logical_cpus=64))


def test_another_backend_is_an_error(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match=r"`KERAS_BACKEND` must be tensorflow or jax. Received: torch"):
        choose_devices(make_config())


@pytest.mark.parametrize("num_logical_cpus", [1, 2])
def test_a_model_is_not_split_on_tensorflow(num_logical_cpus):
    config = make_config(num_logical_cpus)
    config.train.model_parallel = 2
    with pytest.raises(ValueError, match=r"`config.train.model_parallel` must be 1, .*Received: .*=2, tensorflow"):
        choose_devices(config)


class Made(Exception):
    """Raised instead of creating a strategy that this machine does not support."""


def refuse(*arguments, **keywords):
    raise Made(arguments, keywords)


def test_a_named_tpu_is_connected_to(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", refuse)
    with pytest.raises(Made) as made:
        choose_devices(make_config())
    assert made.value.args[1] == {"tpu": "my-tpu"}


@pytest.mark.parametrize("error", [OSError, tf.errors.NotFoundError])
def test_an_unreachable_tpu_is_an_error(monkeypatch, error):
    def fail(tpu):
        raise error("no\nhost") if error is OSError else error(None, None, "no\nhost")

    monkeypatch.setenv("TPU_NAME", "my-tpu")
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fail)
    with pytest.raises(ValueError, match=r"`TPU_NAME`, an environment variable, must be .*TPU_NAME=my-tpu \(no\)"):
        choose_devices(make_config())


def test_an_empty_name_of_a_tpu_is_an_error(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "")
    with pytest.raises(ValueError, match=r"`TPU_NAME`, an environment variable, must be .* Received: an empty string"):
        choose_devices(make_config())


def test_a_description_of_workers_that_is_no_json_is_an_error(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{cluster}")
    with pytest.raises(ValueError, match=r"`TF_CONFIG`, an environment variable, must be JSON .*{cluster}"):
        choose_devices(make_config())


def test_several_workers_are_taken_from_tf_config(monkeypatch):
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", refuse)
    workers = {"cluster": {"worker": ["one:1", "two:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    with pytest.raises(Made):
        choose_devices(make_config())


def test_a_cluster_of_one_worker_is_one_device(monkeypatch):
    workers = {"cluster": {"worker": ["one:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    assert type(choose_devices(make_config())) is OneDevice


def test_several_gpus_are_mirrored(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"] if kind == "GPU" else [])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", refuse)
    with pytest.raises(Made):
        choose_devices(make_config())


class Resolver:
    """Cluster resolver of a strategy, and cluster specification."""

    def __init__(self, task_type, task_id, **jobs):
        self.task_type, self.task_id = task_type, task_id
        self.cluster_spec, self.as_dict = lambda: self, lambda: jobs


@pytest.mark.parametrize(
    ("task", "jobs", "index"),
    [
        (("worker", 0), {"worker": ["one:1", "two:1"]}, 0),
        (("worker", 1), {"worker": ["one:1", "two:1"]}, 1),
        (("chief", 0), {"chief": ["one:1"], "worker": ["two:1"]}, 0),
        (("worker", 0), {"chief": ["one:1"], "worker": ["two:1"]}, 1),
    ],
)
def test_the_first_worker_writes_the_files(task, jobs, index):
    class Strategy:
        num_replicas_in_sync = 2
        cluster_resolver = Resolver(*task, **jobs)

    devices = TensorFlowReplicas(Strategy())
    assert (devices.process_index, devices.is_chief) == (index, index == 0)
    assert (devices.num_processes, devices.is_single_process) == (2, False)


def test_another_number_of_replicas_logs_a_warning(two_replicas, caplog):
    for before in (None, 2, 4):
        two_replicas.warn_if_replicas_differ(before)
    (told,) = caplog.messages
    assert told.startswith("The checkpoint was written with 4 replicas, and this run has 2") and "dropout" in told


@pytest.mark.parametrize("received", [None, signal.SIGINT, signal.SIGTERM])
def test_several_processes_agree_on_a_signal(received, two_replicas, monkeypatch):
    monkeypatch.setattr(two_replicas, "num_processes", 2)
    with two_replicas.scope():
        assert two_replicas.agree_on_signal(received, step=3) == received


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("one:1 2 2", "`JAX_COORDINATOR_ADDRESS, .*`, environment variables.* Received: .*=2, JAX_PROCESS_ID=2."),
        ("one:1 '' 0", "`JAX_COORDINATOR_ADDRESS, .*`, environment variables"),
        ("one:70000 2 0", "`JAX_COORDINATOR_ADDRESS, .*`, environment variables"),
        ("one 2 0", "`JAX_COORDINATOR_ADDRESS, .*`, environment variables"),
        ("'' auto ''", "`JAX_NUM_PROCESSES`, an environment variable, must be a number.* Received: .*=auto"),
    ],
)
def test_invalid_variables_of_jax_processes_are_an_error(run_jax, values, message):
    code = f"""
import os, shlex
from unittest import mock
import jax
from tf_sparse_attention.trainers.shared import devices
variables = dict(zip(devices.JAX_VARIABLES, shlex.split("{values}")))
fail = mock.Mock(side_effect=ValueError("no cluster"))  # JAX has computed, and would look for none
with mock.patch.dict(os.environ, variables), mock.patch.object(jax.distributed, "initialize", fail):
    try:
        devices.join_jax_processes()
    except ValueError as error:
        print(error)
"""
    assert re.match(message, run_jax(code))


CHOICE_OF_JAX = """
import keras
from tf_sparse_attention.trainers.shared.devices import choose_devices
from tf_sparse_attention.trainers.configs import base
config = base.get_config()
config.train.num_logical_cpus = 2
devices = choose_devices(config)
print(type(devices).__name__, devices.num_replicas, devices.is_chief)
with devices.scope():
    print(type(keras.distribution.distribution()).__name__)
print(keras.distribution.distribution())
print(devices.execution(True, 4))
"""
CHOSEN = [
    "JaxDevices 2 True",
    "DataParallel",
    "None",
    "{'jit_compile': True, 'steps_per_execution': 4}",
]


def test_jax_divides_the_batch_over_its_devices(run_jax):
    assert run_jax(CHOICE_OF_JAX).splitlines() == CHOSEN


@pytest.mark.full
def test_jax_has_two_logical_cpus(run_python):
    pytest.importorskip("jax")
    assert run_python(CHOICE_OF_JAX, KERAS_BACKEND="jax", JAX_NUM_CPU_DEVICES="1").splitlines() == CHOSEN


SPLIT_ON_JAX = """
import keras, pytest
from tf_sparse_attention.trainers.shared.devices import choose_devices
from tf_sparse_attention.trainers.configs import base
config = base.get_config()
config.data.batch_size = 1
config.train.update(num_logical_cpus=2, model_parallel=2)
devices = choose_devices(config)
print(devices.num_replicas)
with devices.scope():
    distribution = keras.distribution.distribution()
    print(type(distribution).__name__, distribution.device_mesh.shape)
config.train.model_parallel = 3
with pytest.raises(ValueError, match="`config.train.model_parallel` must divide .*=3, 2 devices, 1 processes."):
    choose_devices(config)
"""


def test_jax_divides_the_model_over_devices(run_jax):
    assert run_jax(SPLIT_ON_JAX).splitlines() == ["1", "ModelParallel (1, 2)"]
