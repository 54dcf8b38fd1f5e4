"""The study of heads on real text: its categories of tokens, its models of equal size, its file and its tables."""

import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.quality import config, held_out, measure
from benchmarks.quality.__main__ import PAGE, page_with_tables
from benchmarks.quality.cells import FULL, QUICK, SETS
from tests.draws import first
from tf_sparse_attention.trainers.shared import components


def test_a_token_is_far_if_its_context_occurred_only_beyond_the_reach():
    random = np.random.default_rng(0)
    ids, documents = random.integers(0, 4, (3, 60)), np.sort(random.integers(0, 3, (3, 60)))
    found = measure.categories(ids, documents, reach=7)
    for row in range(3):
        for at in range(60):
            earlier = [
                s
                for s in range(1, at)
                if list(ids[row, s - 1 : s + 1]) == list(ids[row, at - 1 : at + 1])
                and len({*documents[row, s - 1 : s + 1], *documents[row, at - 1 : at + 1]}) == 1
            ]
            expected = measure.NONE
            if earlier:
                expected = measure.NEAR if at - max(earlier) <= 7 else measure.FAR
            assert found[row, at] == expected
    assert set(found.ravel()) == {measure.NONE, measure.NEAR, measure.FAR}


@pytest.mark.parametrize("kind", first(config.WHOLE, 1))
def test_all_kinds_have_as_many_weights_as_local_heads(kind):
    model = components.make_model(config.get_config(f"python-1024-{kind}-10"), 1987)
    count = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert abs(count / 653_123 - 1) < 0.005  # those of "local"


def test_every_cell_has_a_configuration_and_other_cells_are_errors():
    assert len(set(FULL)) == len(FULL) and set(QUICK) <= set(FULL)
    for name in {cell.config for each in SETS.values() for cell in each}:
        assert config.get_config(name).train.num_steps in (500, 3000)
    for name, argument in [
        ("python-1024-local", "config"),
        ("", "config"),
        ("a-64-sparse-1", "kind"),
        ("a-64-last_first_local-1", "kind"),
    ]:
        with pytest.raises(ValueError, match=f"`{argument}`"):
            config.get_config(name)


class Scored(keras.layers.Layer):
    """A model whose nats are the position of a token."""

    def compile(self, loss):
        pass

    def predict_on_batch(self, inputs):
        return np.broadcast_to(np.arange(inputs["token_ids"].shape[1], dtype="float32"), inputs["token_ids"].shape)


@pytest.fixture
def scored(monkeypatch):
    """Held-out text of three windows of 8 tokens, the last two of the second padding, and a model that is known."""
    ids, weights = np.ones((3, 8), "int32"), np.ones((3, 8), "float32")
    weights[1, 6:] = 0
    inputs = {"token_ids": ids, "segment_ids": np.zeros((3, 8), "int32")}
    batch = tf.nest.map_structure(tf.constant, (inputs, ids, weights))
    text = held_out.HeldOut(Scored(), SimpleNamespace(num_bytes=71), [batch])
    monkeypatch.setattr(measure, "open_held_out", lambda *args: text)


def test_losses_are_means_over_the_tokens_that_count(scored):
    found = measure.measure("folder", reach=7)
    assert found["loss"] == pytest.approx(71 / 22) and found["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert found["quarters"] == [0.5, 2.5, 4.5, 6.5] and found["weights"] == 0
    assert found["new"] == 0.5 and found["near"] == pytest.approx(68 / 16)  # from the third token on
    assert found["share_far"] == 0


def test_the_page_has_the_results_of_the_file():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_tables(page) == page  # python -m benchmarks.quality --show --write
    assert "| local |" in page and "wiki_xml, windows of 1,024 tokens, 500 steps" in page
