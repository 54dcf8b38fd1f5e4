"""Settings and fixtures of the whole test suite.

What must be decided before Keras, TensorFlow or JAX starts is decided at the top of this file and in
`pytest_sessionstart`.
"""

import gc
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Two devices on any machine, for the tests of several replicas; what does not ask for the second never uses it.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests.jax_worker import JaxWorker

ROOT = Path(__file__).resolve().parent.parent

# One run equals the next: no random examples, and no limit on time that a busy machine would break.
hypothesis.settings.register_profile(
    "fixed", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# The same with more examples where a test asks for them, see `tests/draws.py`; `make test-full` takes it.
hypothesis.settings.register_profile("full", hypothesis.settings.get_profile("fixed"))
hypothesis.settings.load_profile("fixed")


def pytest_sessionstart(session):
    """Split TensorFlow's CPU into two logical devices, which is possible only before its first operation."""
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # the process that hands out the tests runs none, and need not wait for TensorFlow
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give pytest-xdist the scheduler of `scheduling.py` for `--dist loadfile`."""
    if config.getoption("dist") == "loadfile":
        from tests.scheduling import ByGroup

        return ByGroup(config, log)
    return None


def pytest_collection_modifyitems(config, items):
    """Begins with what takes longest, if the tests are shared out."""
    if hasattr(config, "workerinput"):
        from tests.scheduling import place_in_order

        items.sort(key=place_in_order)


def pytest_collection_finish():
    """Take the million objects that the imports made out of the collector's sight: they stay anyway.

    And lets it look a seventieth as often, as tracing makes objects by the hundred thousand: a fifth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 40)


@pytest.fixture(autouse=True)
def fresh_keras():
    """Start each test with the same seeds, layer names and dtype policy, alone or after any other test."""
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def run_python():
    """Function that runs Python code in a process of its own and returns what it printed; it takes seconds to start.

    Keywords are variables of the process: `run_python("import keras", KERAS_BACKEND="jax")`. Prefer `run_jax`.
    """

    def run(code, **environment):
        process = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
        )
        if process.returncode:
            pytest.fail(f"exit status {process.returncode} from\n{code}\n{process.stderr}")
        return process.stdout

    return run


@pytest.fixture(scope="session")
def run_jax():
    """Function that runs Python code on the JAX backend and returns what it printed.

    All code of a session runs in one process, see `jax_worker.py`, each piece with names and seeds of its own. Have
    `jax` in the name of the test, so that one process of tests gets all of them (`scheduling.py`).
    """
    pytest.importorskip("jax")
    with tempfile.TemporaryFile("w+") as said:
        worker = JaxWorker(said)
        yield worker
        worker.close()


@pytest.fixture(scope="session")
def two_replicas():
    """The one strategy of two replicas in this process, on its two logical CPUs; skipped on other backends."""
    import keras

    if keras.backend.backend() != "tensorflow":
        pytest.skip("needs two logical CPUs, which the suite makes on the TensorFlow backend only")
    from tf_sparse_attention.trainers.shared.devices import mirrored_cpus

    return mirrored_cpus(2)


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of real data sets next to the checkout. Skip the test if it is missing."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real data sets in ../shared/data, which are not part of the repository")
    return folder


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Return a folder with the content of `tests/golden/references.tar.xz`."""
    folder = tmp_path_factory.mktemp("references")
    with tarfile.open(ROOT / "tests" / "golden" / "references.tar.xz") as archive:
        # Python 3.11 has filters since 3.11.4; later versions warn without one.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder
