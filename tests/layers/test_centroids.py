"""Centroids of routing attention: updates, revival, initialization and saving."""

import keras
import numpy as np
import pytest

from tests.contracts import SIZE, assert_close, to_numpy
from tests.draws import first
from tests.layers.routing_state import X, assert_same_state, learned, ready, routing, state_of


def with_an_unused_centroid(**own):
    """A layer whose second centroid gets no token: one of two opposite ones always scores higher than 0."""
    layer = ready(routing(**own))
    centroids = to_numpy(layer.centroids.value)
    centroids[:, 1], centroids[:, 2] = 0, -centroids[:, 0]
    for weight in layer.weights:
        if weight.name in ("centroids", "sums"):
            weight.assign(centroids)
    return layer


@pytest.mark.parametrize(
    ("selection", "share_qk"),
    first([("nearest", True), ("top_k", False), ("top_keys", False), ("nearest", False), ("top_k", True)], 2),
)
def test_training_updates_the_centroids_by_the_average_and_adds_the_commitment_once(share_qk, selection):
    layer = ready(routing(ema_decay=0.8, commitment_loss=0.5, share_qk=share_qk, selection=selection, revive_after=0))
    for _ in range(2):
        state, loss = learned(layer)
        layer(X, training=True)
        for got, wanted in zip(state_of(layer), state, strict=True):
            assert_close(got, wanted, 1e-5)
        assert len(layer.losses) == 1
        assert_close(to_numpy(layer.losses[0]), loss, 1e-5)


def test_a_training_step_routes_by_the_centroids_before_it():
    layer = ready(routing(ema_decay=0.0, revive_after=0))
    before = to_numpy(layer(X, use_causal_mask=True))
    assert_close(to_numpy(layer(X, use_causal_mask=True, training=True)), before)
    after = to_numpy(layer(X, use_causal_mask=True))
    assert np.abs(after - before).max() > 0.01


@pytest.mark.parametrize(("share_qk", "mask_rows"), [(True, 1), (False, 2)])
def test_padding_is_neither_counted_nor_committed(share_qk, mask_rows):
    layer = ready(routing(ema_decay=0.8, commitment_loss=0.5, revive_after=0, share_qk=share_qk))
    mask = np.repeat(np.arange(13)[None] < 9, mask_rows, axis=0)
    padded = np.where(mask[..., None], X, np.nan)
    state, loss = learned(layer, np.nan_to_num(padded), query_mask=np.broadcast_to(mask, (2, 13)))
    layer(padded, use_causal_mask=True, training=True, query_mask=mask)
    for got, wanted in zip(state_of(layer), state, strict=True):
        assert_close(got, wanted, 1e-5)
    assert_close(to_numpy(layer.losses[0]), loss, 1e-5)


def test_the_noise_of_a_revival_follows_only_the_seed_of_the_layer():
    found = []
    for seed in (0, 1):
        keras.utils.set_random_seed(seed)
        layer = with_an_unused_centroid(revive_after=1, ema_decay=0.9)
        layer(X, training=True)
        found.append(state_of(layer))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_commitment_loss_is_added_at_zero_or_outside_training_or_when_frozen():
    for layer, training in ((routing(commitment_loss=0), True), (routing(), False), (routing(trainable=False), True)):
        layer(X, use_causal_mask=True, training=training)
        assert layer.losses == []


def test_the_first_centroids_are_normalised_distinct_directions_that_count_as_one_member():
    layer = ready(routing())
    centroids, sums, counts, unused = state_of(layer)
    assert_close(centroids.mean(-1), 0)
    assert_close(centroids.var(-1), np.ones((2, 3)), 1e-4)
    assert len(np.unique(centroids.reshape(6, 4), axis=0)) == 6
    assert np.array_equal(sums, centroids) and np.all(counts == 1) and np.all(unused == 0)


def test_layers_with_equal_seeds_are_equal_in_training():
    results = []
    for seed in (7, 7, 8):
        layer = ready(routing(dropout=0.3, seed=seed, revive_after=1))
        outputs = [to_numpy(layer(X, use_causal_mask=True, training=True)) for _ in range(3)]
        results.append([*outputs, *state_of(layer)])
    assert all(np.array_equal(a, b) for a, b in zip(*results[:2], strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(results[0][:5], results[2][:5], strict=True))


def test_start_from_data_makes_centroids_of_tokens():
    layer = ready(routing())
    layer.start_from_data(X)
    centroids, sums, counts, unused = state_of(layer)
    kernel, bias = (to_numpy(weight.value) for weight in layer.weights[:2])
    tokens = np.einsum("btd,dnh->nbth", X, kernel) + bias[:, None, None]
    tokens = tokens - tokens.mean(-1, keepdims=True)
    tokens = (tokens / np.sqrt(tokens.var(-1, keepdims=True) + 1e-6)).reshape(2, -1, 4)
    for head in range(2):
        distance = np.abs(centroids[head][:, None] - tokens[head][None]).max(-1)
        assert np.all(distance.min(-1) < 1e-5) and len(set(distance.argmin(-1))) == 3
    assert np.array_equal(sums, centroids) and np.all(counts == 1) and np.all(unused == 0)


def test_start_from_data_ignores_padding():
    layer, mask = ready(routing()), np.zeros(X.shape[:2], "bool")
    mask[0, 1:4] = True
    carried = keras.ops.convert_to_tensor(X)
    carried._keras_mask = keras.ops.convert_to_tensor(mask)
    layer.start_from_data(X[:1, 1:4])
    expected = state_of(layer)[0]
    for arguments in ((X, mask), (carried,)):
        layer.start_from_data(*arguments)
        for found, wanted in zip(state_of(layer)[0], expected, strict=True):
            np.testing.assert_allclose(found[found[:, 0].argsort()], wanted[wanted[:, 0].argsort()], atol=1e-6)


def test_start_from_data_follows_its_seed_builds_the_layer_and_works_in_half_precision():
    layer, found = routing(dtype="mixed_bfloat16"), []
    for seed in (None, None, 3):
        layer.start_from_data(X, seed=seed)
        found.append(state_of(layer)[0])
    assert found[0].dtype == "float32"
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def test_an_unused_centroid_is_revived_near_the_fullest_after_the_given_steps():
    layer = with_an_unused_centroid(revive_after=2, ema_decay=0.9)
    layer(X, training=True)
    assert np.all(state_of(layer)[3][:, 1] == 1)
    expected = learned(layer)[0][2]  # the counts before revival
    layer(X, training=True)
    centroids, _, counts, unused = state_of(layer)
    for head in range(2):
        fullest = int(np.argmax(expected[head]))
        assert unused[head, 1] == 0 and fullest != 1
        np.testing.assert_allclose(counts[head, [1, fullest]], expected[head, fullest] / 2, rtol=1e-5)
        apart = np.abs(centroids[head, 1] - centroids[head, fullest])
        assert 0.01 < apart.max() < 0.5


def test_only_training_changes_the_state_and_files_keep_it(tmp_path):
    inputs = keras.Input((None, SIZE))
    model = keras.Model(inputs, routing(name="routing", dropout=0.1)(inputs, use_causal_mask=True))
    layer = model.get_layer("routing")
    before = state_of(layer)
    model(X)
    assert_same_state(before, layer)
    model(X, training=True)
    assert not any(np.array_equal(a, b) for a, b in zip(before[:3], state_of(layer)[:3], strict=True))
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = [keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)]
    loaded[1].load_weights(tmp_path / "model.weights.h5")
    layer(X, training=True)
    for other in loaded:  # all of them go on alike
        other.get_layer("routing")(X, training=True)
        assert_same_state(state_of(layer), other.get_layer("routing"))


def test_accumulated_gradients_move_centroids_on_every_batch():
    inputs, moved = keras.Input((None, SIZE)), []
    model = keras.Model(inputs, routing()(inputs, use_causal_mask=True))
    model.compile(keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2), "mse", run_eagerly=True)
    for _ in range(2):
        before = [to_numpy(variable) for variable in model.variables]
        model.train_on_batch(X, X)
        pairs = zip(model.variables, before, strict=True)
        moved.append({variable.name for variable, old in pairs if not np.array_equal(to_numpy(variable), old)})
    assert moved[0] == {"centroids", "sums", "counts"} and moved[1] > moved[0]
