"""A model and its SavedModel, exported once for all tests of exports."""

import pytest
import tensorflow as tf

from tests.export.serving import export, make_model


@pytest.fixture(scope="session")
def model():
    return make_model()


@pytest.fixture(scope="session")
def exported(model, tmp_path_factory):
    """A SavedModel without XLA, which compiles a program for each length."""
    return export(model, tmp_path_factory.mktemp("export") / "saved_model", jit_compile=False)


@pytest.fixture(scope="session")
def served(exported):
    return tf.saved_model.load(exported).signatures
