"""Settings and fixtures of the whole test suite.

Everything that must be decided before Keras or TensorFlow starts is decided at the top of this file.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from pathlib import Path

import hypothesis
import keras
import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

# One run equals the next: no random examples, no time limit that a busy machine breaks.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def fixed_seed():
    """Seeds Python, NumPy and the backend, so that a test gives the same numbers alone and in any order."""
    keras.utils.set_random_seed(0)


def _shared_folder(name):
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"needs the folder ../shared/{name} beside the checkout, which is not there")
    return folder


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the real data sets beside the checkout; the test is skipped where it is missing."""
    return _shared_folder("data")


@pytest.fixture(scope="session")
def shared_goldens():
    """Folder of numbers computed with the reference implementations; the test is skipped where it is missing."""
    return _shared_folder("goldens")
