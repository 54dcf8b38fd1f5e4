"""Routed heads changed in one thing, and what looking ahead is worth."""

import keras
import numpy as np
import pytest

from benchmarks.quality import ahead, variants
from tests.contracts import with_random_weights
from tests.draws import first
from tf_sparse_attention.analysis import assert_causal
from tf_sparse_attention.models import Backbone, LanguageModel

SIZES = {"num_heads": 2, "key_dim": 4, "num_clusters": 3, "cluster_size": 5, "seed": 1}
LAYERS = {
    "LearnedTemperature": {"use_successor_values": True, "start": 2.0},
    "Gated": {"use_successor_values": True},
    "Started": {"use_successor_values": True, "start": "data"},
    "ShiftedKeys": {"selection": "nearest", "share_qk": False},
    "ConvolvedKeys": {"selection": "nearest", "share_qk": False},
}


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize("name", first(LAYERS, 2))
def test_a_variant_is_causal_and_made_of_its_config(name):
    layer = getattr(variants, name)(**SIZES, **LAYERS[name])
    layer.build((None, None, 8))
    with_random_weights(layer)
    assert_causal(layer, sequence_length=12, hidden_dim=8, num_cuts=3)
    same = type(layer).from_config(layer.get_config())
    same.build((None, None, 8))
    same.set_weights(layer.get_weights())
    x = normal(2, 12, 8)
    np.testing.assert_array_equal(same(x, use_causal_mask=True), layer(x, use_causal_mask=True))


def model_of(selection):
    part = {"layer": "RoutingAttention", **SIZES, "selection": selection}
    model = LanguageModel(Backbone(20, 2, 8, [part], intermediate_dim=8, seed=0))
    for weight in model.trainable_weights:
        weight.assign(weight + 0.5 * keras.random.normal(weight.shape, seed=1))
    model.compile(loss=None)
    return model


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")
@pytest.mark.parametrize("selection", ["nearest", "top_k"])
def test_looking_ahead_is_the_difference_to_the_loss_of_prefixes(selection):
    model, random = model_of(selection), np.random.default_rng(0)
    token_ids, targets = random.integers(1, 20, (2, 24)).astype("int32")
    places = np.array([6, 11, 22])
    one_pass, from_the_past = ahead.losses_of(model, {"token_ids": token_ids}, targets, places)

    def nats(ids, place):
        return float(np.asarray(model({"token_ids": ids[None], "targets": targets[None, : len(ids)]}))[0, place])

    np.testing.assert_allclose(one_pass, [nats(token_ids, place) for place in places], atol=1e-5)
    prefixes = [nats(token_ids[: place + 1], place) for place in places]
    np.testing.assert_allclose(from_the_past, prefixes, atol=1e-5)
    apart = np.abs(one_pass - from_the_past).max()
    assert apart < 1e-5 if selection == "nearest" else apart > 1e-3
