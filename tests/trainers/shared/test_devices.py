"""Devices of a run, and resumption with another number of them."""

import json
import os
import signal
import types

import pytest
import tensorflow as tf

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import devices as trainer_devices
from tf_sparse_attention.trainers.shared.devices import OneDevice, TensorFlowReplicas, choose_devices


def make_config(num_logical_cpus=1, batch_size=8, **train):
    config = base.get_config()
    config.train.update(num_logical_cpus=num_logical_cpus, **train)
    config.data.batch_size = batch_size
    return config


@pytest.fixture
def two_replicas():
    return choose_devices(make_config(num_logical_cpus=2))


def test_one_cpu_is_one_device_that_compiles_with_xla_by_default(monkeypatch):
    one_worker = {"cluster": {"worker": ["one:1"]}, "task": {"type": "worker", "index": 0}}
    for description in ("", json.dumps(one_worker)):
        monkeypatch.setenv("TF_CONFIG", description)
        devices = choose_devices(make_config())
        assert (type(devices), devices.num_replicas, devices.is_chief) == (OneDevice, 1, True)
    assert devices.execution(None, 4) == {"jit_compile": True, "steps_per_execution": 4}
    assert devices.execution(False, 1)["jit_compile"] is False


def test_two_logical_cpus_are_two_replicas_without_xla_that_run_one_step_at_a_time(two_replicas):
    assert (two_replicas.num_replicas, two_replicas.is_chief) == (2, True)
    with two_replicas.scope():
        assert tf.distribute.get_strategy() is two_replicas.strategy
    assert two_replicas.execution(None, 1) == {"jit_compile": False, "steps_per_execution": 1}
    for call, message in [
        (lambda: two_replicas.execution(True, 1), "`config.train.jit_compile`.*2 replicas"),
        (lambda: two_replicas.execution(None, 5), "`config.train.steps_per_execution`.*=5, 2 replicas"),
        (lambda: two_replicas.check_accumulation(4), "`config.optimizer.gradient_accumulation_steps`.*=4, 2 replicas"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_what_the_machine_does_not_have_is_an_error_that_names_it(subtests, monkeypatch):
    tf.config.list_logical_devices()  # after this, TensorFlow has no more devices
    for config, variables, message in [
        (make_config(2, batch_size=7), {}, "`config.data.batch_size`.*batch_size=7, 2 replicas"),
        (make_config(64), {}, "`config.train.num_logical_cpus`.*=64, 2 devices"),
        (make_config(1, model_parallel=2), {}, "`config.train.model_parallel`.*=2, tensorflow"),
        (make_config(2, model_parallel=2), {}, "`config.train.model_parallel`.*=2, tensorflow"),
        (make_config(), {"TPU_NAME": ""}, "`TPU_NAME`.*an empty string"),
        (make_config(), {"TPU_NAME": "local"}, "`TPU_NAME`.*TPU_NAME=local .*TPU"),
        (make_config(), {"TF_CONFIG": "{cluster}"}, "`TF_CONFIG`.*{cluster}"),
    ]:
        with subtests.test(message), monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(ValueError, match=message):
                choose_devices(config)


def test_another_backend_and_determinism_after_a_gpu_was_used_are_errors(monkeypatch):
    monkeypatch.setattr(trainer_devices, "_jax_uses_gpus", lambda: True)
    monkeypatch.setenv("XLA_FLAGS", "--xla_abc=1")
    for backend, message in [("torch", "`KERAS_BACKEND`.*torch"), ("jax", "`config.train.deterministic`.*=1'")]:
        chosen = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda name=backend: name))
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=message):
            patch.setattr(trainer_devices, "keras", chosen)
            choose_devices(make_config())


def test_the_first_worker_writes_the_files(monkeypatch):
    for task, jobs, index in [
        (("worker", 0), {"worker": ["one:1", "two:1"]}, 0),
        (("worker", 1), {"worker": ["one:1", "two:1"]}, 1),
        (("chief", 0), {"chief": ["one:1"], "worker": ["two:1"]}, 0),
        (("worker", 0), {"chief": ["one:1"], "worker": ["two:1"]}, 1),
    ]:
        cluster = types.SimpleNamespace(as_dict=lambda jobs=jobs: jobs)
        names = {"task_type": task[0], "task_id": task[1], "cluster_spec": lambda cluster=cluster: cluster}
        resolver = types.SimpleNamespace(**names)
        devices = TensorFlowReplicas(types.SimpleNamespace(num_replicas_in_sync=2, cluster_resolver=resolver))
        assert (devices.process_index, devices.is_chief) == (index, index == 0)
        assert (devices.num_processes, devices.is_single_process) == (2, False)
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs}))
        assert trainer_devices._num_tensorflow_workers() == 2


def test_several_processes_agree_on_a_signal(two_replicas, monkeypatch):
    monkeypatch.setattr(two_replicas, "num_processes", 2)
    with two_replicas.scope():
        for received in (None, signal.SIGINT, signal.SIGTERM):
            assert two_replicas.agree_on_signal(received, step=3) == received


# In a new process, because XLA reads its flags, and JAX looks for a cluster, before the first operation.
NEW_PROCESS = """
import os, pathlib
from tf_sparse_attention.backends import has_tensorflow
has_tensorflow()
import jax
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import devices
os.environ["JAX_NUM_PROCESSES"] = "auto"
try:
    devices.join_jax_processes()
except ValueError as error:
    print(error)
del os.environ["JAX_NUM_PROCESSES"]
devices.choose_devices(base.get_config())
jax.jit(lambda x: x + 1)(1.0)
options = [path.read_text() for path in pathlib.Path({folder!r}).glob("*debug_options")]
print(bool(options) and all("xla_gpu_deterministic_ops: true" in text for text in options))
"""


@pytest.mark.full
def test_jax_checks_its_variables_and_has_a_deterministic_flag_before_there_are_devices(run_python, tmp_path):
    pytest.importorskip("jax")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tmp_path}"
    printed = run_python(NEW_PROCESS.format(folder=str(tmp_path)), KERAS_BACKEND="jax", XLA_FLAGS=flags)
    error, is_deterministic = printed.splitlines()
    assert error.startswith("`JAX_NUM_PROCESSES`") and is_deterministic == "True"


ON_JAX = """
import shlex
import keras, pytest
from tf_sparse_attention.trainers.shared import devices as devices_module
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
config.data.batch_size = 1
config.train.model_parallel = 2
devices = choose_devices(config)
print(devices.num_replicas)
with devices.scope():
    distribution = keras.distribution.distribution()
    print(type(distribution).__name__, distribution.device_mesh.shape)
config.train.model_parallel = 3
with pytest.raises(ValueError, match="`config.train.model_parallel` must divide .*=3, 2 devices, 1 processes."):
    choose_devices(config)
for values in ("one:1 2 2", "one:1 '' 0", "one:70000 2 0", "one 2 0"):
    given = dict(zip(devices_module.JAX_VARIABLES, shlex.split(values)))
    message = f"`JAX_COORDINATOR_ADDRESS, .*JAX_PROCESS_ID={given['JAX_PROCESS_ID']}"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match=message):
        for name, value in given.items():
            patch.setenv(name, value)
        devices_module.join_jax_processes()
"""


def test_jax_divides_the_batch_or_the_model_over_its_devices(run_jax):
    assert run_jax(ON_JAX).splitlines() == [
        "JaxDevices 2 True",
        "DataParallel",
        "None",
        "{'jit_compile': True, 'steps_per_execution': 4}",
        "1",
        "ModelParallel (1, 2)",
    ]
