"""Small text, configurations and runs for tests of trainers."""

import keras
import numpy as np
import pytest

from tests.trainers import task_runs
from tf_sparse_attention.trainers.configs import demo
from tf_sparse_attention.trainers.shared import training
from tf_sparse_attention.trainers.tasks import registry

SIZES = {"train": 12_000, "validation": 1_500, "test": 1_700}


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(0)
    words = ["".join(chr(97 + letter) for letter in generator.integers(0, 26, length)) for length in (2, 3, 5, 7) * 6]
    for split, size in SIZES.items():
        (folder / split).mkdir()
        for number in range(3):
            text = " ".join(generator.choice(words, size // 12))[: size // 3]
            (folder / split / f"{number}.txt").write_text(f"{text}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def make_task_config(tmp_path_factory, data_dir):
    """A function that creates the configuration of a task, and its data: `make_task_config("image", "local_2d")`."""
    folder = tmp_path_factory.mktemp("task_data")
    return lambda task, variant=None: task_runs.make_config(task, folder, data_dir, variant)


@pytest.fixture(scope="session")
def task_run(make_task_config, tmp_path_factory):
    """A function that returns the run directory of an untrained model of a task. Tests may add files."""
    runs = {}

    def get(task, variant=None):
        if (task, variant) not in runs:
            folder = tmp_path_factory.mktemp(task)
            runs[task, variant] = task_runs.write_run(folder, make_task_config(task, variant))
        return runs[task, variant]

    return get


@pytest.fixture(scope="module")
def run(request, task_run):
    """The directory of an untrained run of the task `TASK` of a test file, or of a language model."""
    task = getattr(request.module, "TASK", None)
    return task_run(task) if task else request.getfixturevalue("untrained")


@pytest.fixture(scope="module")
def task(run):
    return registry.load_task(run)


@pytest.fixture(scope="module")
def model(run):
    """The model of `run`. Do not change it."""
    return task_runs.load_model(run)


@pytest.fixture
def tiny_config(make_tiny_config):
    """A separate configuration for one test; see `make_tiny_config`."""
    return make_tiny_config()


@pytest.fixture(scope="session")
def finished(make_tiny_config, tmp_path_factory):
    """The directory and outcome of a run of 8 steps. Do not change it."""
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("finished")
    return folder, training.train(make_tiny_config(), folder)


@pytest.fixture(scope="session")
def untrained(text_folder, data_dir, tmp_path_factory):
    """The directory of a run with an untrained language model. Tests may add files."""
    config = task_runs.make_language_model_config(path=str(text_folder), data_dir=str(data_dir))
    return task_runs.write_run(tmp_path_factory.mktemp("untrained"), config)


@pytest.fixture(scope="session")
def make_plain_config(make_tiny_config):
    """A cheaper `make_tiny_config`: only local heads, 2 steps, no evaluation."""

    def make():
        config = make_tiny_config()
        config.model.attention = demo.get_config("tiny").model.attention[:1]
        config.train.update(num_steps=2, evaluate_every=0)
        return config

    return make


@pytest.fixture(scope="session")
def make_tiny_config(text_folder, data_dir):
    """A function that creates a configuration: one layer with routed heads, dropout, 8 steps on the small text."""

    def make():
        config = demo.get_config("tiny")
        config.data.update(path=str(text_folder), data_dir=str(data_dir))
        config.model.update(num_layers=1, attention=config.model.attention[1:])
        config.train.update(num_steps=8, log_every=2, evaluate_every=4, checkpoint_every=2, evaluation_windows=4)
        # Determinism is process-wide, and compilation takes longer than the steps.
        config.train.update(deterministic=False, jit_compile=False)
        return config

    return make
