"""Files that earlier releases wrote: `.keras` files with every kind of attention, and a SavedModel.

`tests/make_written_before.py` tells how they came to be; they are not written anew.
"""

import tarfile
import warnings

import keras
import numpy as np
import pytest

import tf_sparse_attention  # noqa: F401 (its classes are registered)
from tests.conftest import ROOT

FOLDER = ROOT / "tests" / "golden" / "written_before"
CLOSE = 1e-5  # outputs are of size one; tokens may be grouped in another order than when the files were written
OTHERS = {"x", "ids", "kinds", "logits", "sequence_output", "pooled_output"}  # numbers that are of no layer
with np.load(FOLDER / "numbers.npz") as file:
    LAYERS = sorted(set(file.files) - OTHERS)


@pytest.fixture(scope="module")
def numbers():
    with np.load(FOLDER / "numbers.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def attention_outputs(numbers):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not causal")
        model = keras.saving.load_model(FOLDER / "attention.keras")
        return {name: keras.ops.convert_to_numpy(y) for name, y in model(numbers["x"]).items()}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_it_computed_when_it_was_saved(name, attention_outputs, numbers):
    np.testing.assert_allclose(attention_outputs[name], numbers[name], rtol=0, atol=CLOSE)


def test_a_language_model_gives_the_logits_it_gave(numbers):
    logits = keras.saving.load_model(FOLDER / "language_model.keras")(numbers["ids"])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(logits), numbers["logits"], rtol=0, atol=CLOSE)


def test_an_encoder_gives_the_vectors_it_gave(numbers):
    inputs = {"token_ids": numbers["ids"], "token_type_ids": numbers["kinds"]}
    outputs = keras.saving.load_model(FOLDER / "encoder.keras")(inputs)
    for name in ("sequence_output", "pooled_output"):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(outputs[name]), numbers[name], rtol=0, atol=CLOSE)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is loaded by TensorFlow")
def test_a_saved_model_gives_the_logits_it_gave(numbers, tmp_path):
    import tensorflow as tf

    with tarfile.open(FOLDER / "language_model.tar.xz") as file:
        # Python 3.11 has filters from its fourth release on.
        file.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served.serve(numbers["ids"]).numpy(), numbers["logits"], rtol=0, atol=CLOSE)
