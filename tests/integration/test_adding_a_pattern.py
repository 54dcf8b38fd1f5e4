"""The page that builds a pattern: its code runs as one file of a user's own, and its pattern does all that ours do."""

import importlib.util
import sys

import keras
import numpy as np
import pytest

from tests import contracts
from tests.cases import Case
from tests.pages import DOCS, blocks
from tf_sparse_attention.analysis import draw_pattern
from tf_sparse_attention.layers import MixedAttention, RoutingAttention, SparseAttention
from tf_sparse_attention.patterns import Window

BLOCKS = blocks((DOCS / "adding_a_pattern.md").read_text(encoding="utf-8"), "python")


@pytest.fixture(scope="module")
def log_sparse(tmp_path_factory):
    """The page's first block, imported from a file that is no part of the library."""
    path = tmp_path_factory.mktemp("own") / "log_sparse.py"
    path.write_text(BLOCKS[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("log_sparse", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["log_sparse"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["log_sparse"]


@pytest.mark.pages
def test_the_rest_of_the_page_runs_with_that_file(log_sparse):
    names = dict(vars(log_sparse))
    for number, block in enumerate(BLOCKS[1:], 1):
        exec(compile(block, f"adding_a_pattern.md, block {number}", "exec"), names)


def test_the_pattern_keeps_the_contracts_of_all_attention(log_sparse, subtests):
    case = Case(lambda **common: SparseAttention(2, 4, log_sparse.PowersOfTwo(), **common))
    for check in (
        contracts.check_config_round_trip,
        contracts.check_padding,
        contracts.check_batch_mates,
        contracts.check_segments,
        contracts.check_state_is_left_alone,
    ):
        with subtests.test(check.__name__):
            check(case)


def test_it_mixes_with_heads_of_other_layers_and_is_drawn(log_sparse):
    part = SparseAttention(2, 4, log_sparse.PowersOfTwo() | Window(3))
    layer = MixedAttention([RoutingAttention(1, 4, 3, 5), part])
    assert len(draw_pattern(layer, 20).axes) == 3


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_it_is_saved_and_exported(log_sparse, tmp_path):
    import tensorflow as tf

    inputs = keras.Input((20, 8))
    model = keras.Model(inputs, SparseAttention(2, 4, log_sparse.PowersOfTwo())(inputs, use_causal_mask=True))
    x = np.random.default_rng(0).standard_normal((2, 20, 8)).astype("float32")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(x), model(x), rtol=0, atol=1e-6)
    model.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(served.serve(x), model(x), rtol=0, atol=1e-6)
