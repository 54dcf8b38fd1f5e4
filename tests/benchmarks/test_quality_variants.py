"""Routed heads changed in one thing, and what looking ahead is worth."""

import keras
import numpy as np
import pytest

from benchmarks.quality import ahead, config, variants
from tests.contracts import with_random_weights
from tests.draws import first
from tf_sparse_attention.analysis import assert_causal
from tf_sparse_attention.layers import RoutingAttention
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


def test_a_temperature_multiplies_the_scores():
    plain = RoutingAttention(**SIZES, selection="nearest", mask_self=False)
    scaled = variants.LearnedTemperature(**SIZES, selection="nearest", mask_self=False, start=3.0)
    x = normal(1, 12, 8)
    weights = []
    for layer in (plain, scaled):
        layer.build(x.shape)
        for name in ("query_dense", "value_dense", "output_dense"):
            getattr(layer, name).set_weights(getattr(plain, name).get_weights())
        weights.append(np.asarray(layer(x, use_causal_mask=True, return_attention_scores=True)[1]))
    same = [np.where(found > 0, found, np.nan) for found in weights]
    tripled = same[0] ** 3 / np.nansum(same[0] ** 3, axis=-1, keepdims=True)
    np.testing.assert_allclose(same[1], tripled, atol=1e-5)


def test_a_gate_passes_the_output_of_heads_to_some_tokens():
    layer, x = variants.Gated(**SIZES, **LAYERS["Gated"]), normal(1, 12, 8)
    layer.build(x.shape)
    opens = np.arange(12) % 3 > 0
    x[..., 0] = np.where(opens, 1, -1)
    layer._gate.set_weights([np.zeros((8, 1)), np.array([100.0])])  # open for all
    whole = layer(x, use_causal_mask=True)
    layer._gate.set_weights([100 * np.eye(8, 1), np.array([0.0])])
    np.testing.assert_allclose(layer(x, use_causal_mask=True), np.where(opens[:, None], whole, 0), atol=1e-6)


def test_centroids_start_from_the_first_batch_or_follow_faster_at_first():
    x = normal(1, 30, 8)
    layers = {
        start: variants.Started(**SIZES, use_successor_values=True, start=start, ema_decay=0.999)
        for start in ("data", "fast")
    }
    plain = RoutingAttention(**SIZES, use_successor_values=True, ema_decay=0.1)  # (1 + 0) / (10 + 0)
    for layer in (plain, *layers.values()):
        layer.build(x.shape)
        layer.query_dense.set_weights(plain.query_dense.get_weights())
        layer(x, use_causal_mask=True, training=True)
    np.testing.assert_allclose(layers["fast"].centroids, plain.centroids, atol=1e-6)
    tokens = np.asarray(plain.project(x)[0])[0]  # (N, T, H)
    started = np.asarray(layers["data"].centroids)
    nearest = np.abs(started[:, :, None] - tokens[:, None]).max(-1).min(-1)
    np.testing.assert_allclose(nearest, 0, atol=1e-4)
    layers["data"](x, use_causal_mask=True, training=True)
    assert np.abs(np.asarray(layers["data"].centroids) - started).max() < 0.1  # the second step moves them a little


def test_shifted_keys_are_those_of_the_token_before():
    layer = variants.ShiftedKeys(**SIZES, **LAYERS["ShiftedKeys"])
    layer.build((None, None, 8))
    x = normal(1, 6, 8)
    np.testing.assert_array_equal(np.asarray(layer.keys_of(x))[:, 1:], x[:, :-1])
    convolved = variants.ConvolvedKeys(**SIZES, **LAYERS["ConvolvedKeys"])
    convolved.build((None, None, 8))
    np.testing.assert_array_equal(convolved.keys_of(x), x)
    convolved._taps.assign(np.array([[-1.0], [1.0], [0.0], [0.0]]) * np.ones((4, 8)))
    np.testing.assert_allclose(np.asarray(convolved.keys_of(x))[:, 1:], x[:, :-1], atol=1e-6)


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


def test_variants_in_models_are_known_by_name():
    parts = config.parts_of("gate", 1024)
    assert parts[1]["class_name"] == "Gated" and parts[1]["config"]["num_clusters"] == 16
