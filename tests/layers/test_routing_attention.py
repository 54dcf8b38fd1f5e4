"""Routing attention: centroids with their updates, revival, initialization and files; selections and warnings."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import CLOSE, SIZE, assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tests.oracle.layers import dense_call
from tf_sparse_attention.layers import LSHAttention, RoutingAttention, SparseAttention
from tf_sparse_attention.patterns import Nearest

X = normal(2, 13, SIZE)
STATE = ("centroids", "sums", "counts", "unused")


def routing(**own):
    return RoutingAttention(**{"num_heads": 2, "key_dim": 4, "num_clusters": 3, "cluster_size": 4, "seed": 7, **own})


def ready(layer):
    """Return the layer, built, with random weights."""
    layer.build(X.shape)
    return with_random_weights(layer)


def state_of(layer):
    found = {weight.name: to_numpy(weight.value) for weight in layer.weights}
    return [found[name] for name in STATE]


def assert_same_state(state, layer):
    assert all(np.array_equal(a, b) for a, b in zip(state, state_of(layer), strict=True))


def learned(layer, x=X, **masks):
    """Return the state and the commitment loss that one training call should give, in NumPy."""
    weights = {"/".join(weight.path.split("/")[-2:]): to_numpy(weight.value) for weight in layer.weights}
    centroids, sums, counts = (
        weights[f"clusters/{name}"].astype("float64") for name in ("centroids", "sums", "counts")
    )
    names = ["query"] if layer.share_qk else ["query", "key"]
    seen_sums, seen_counts, losses = np.zeros_like(sums), np.zeros_like(counts), []
    for name in names:
        heads = np.einsum("btd,dnh->nbth", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"][:, None, None]
        heads = heads - heads.mean(-1, keepdims=True)
        heads = heads / np.sqrt(heads.var(-1, keepdims=True) + 1e-6)
        squares = []
        for b, t in zip(*np.nonzero(masks.get("query_mask", np.ones(x.shape[:2]))), strict=True):
            for n in range(len(heads)):
                nearest = np.argmax(centroids[n] @ heads[n, b, t])
                seen_sums[n, nearest] += heads[n, b, t]
                seen_counts[n, nearest] += 1
                squares.append(np.square(heads[n, b, t] - centroids[n, nearest]))
        losses.append(np.mean(squares))
    keep = layer.ema_decay
    sums, counts = keep * sums + (1 - keep) * seen_sums, keep * counts + (1 - keep) * seen_counts
    total = counts.sum(-1, keepdims=True)
    smoothed = (counts + 1e-5) / (total + counts.shape[-1] * 1e-5) * total
    unused = np.where(seen_counts > 0, 0, weights["clusters/unused"] + 1)
    return (sums / smoothed[..., None], sums, counts, unused), layer.commitment_loss * sum(losses)


def with_an_unused_centroid(**own):
    """A layer whose second centroid gets no token: one of two opposite ones always scores higher than 0."""
    layer = ready(routing(**own))
    centroids = to_numpy(layer.centroids.value)
    centroids[:, 1], centroids[:, 2] = 0, -centroids[:, 0]
    for weight in layer.weights:
        if weight.name in ("centroids", "sums"):
            weight.assign(centroids)
    return layer


def compare_training(layer, expected, x=X, **masks):
    """Compare the state and the loss of a layer after a training call with those that `learned` returned."""
    layer(x, training=True, **masks)
    for got, wanted in zip(state_of(layer), expected[0], strict=True):
        assert_close(got, wanted, 1e-5)
    assert len(layer.losses) == 1
    assert_close(to_numpy(layer.losses[0]), expected[1], 1e-5)


KINDS = [("nearest", True), ("top_k", False), ("top_keys", False), ("nearest", False), ("top_k", True)]


@pytest.mark.parametrize(("selection", "share_qk"), first(KINDS, 2))
def test_training_updates_the_centroids_by_the_average_and_adds_the_commitment_once(share_qk, selection):
    layer = ready(routing(ema_decay=0.8, commitment_loss=0.5, share_qk=share_qk, selection=selection, revive_after=0))
    for _ in range(2):
        compare_training(layer, learned(layer))


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
    expected = learned(layer, np.nan_to_num(padded), query_mask=np.broadcast_to(mask, (2, 13)))
    compare_training(layer, expected, padded, use_causal_mask=True, query_mask=mask)


def test_no_commitment_loss_is_added_at_zero_or_outside_training_or_when_frozen():
    for layer, training in ((routing(commitment_loss=0), True), (routing(), False), (routing(trainable=False), True)):
        layer(X, use_causal_mask=True, training=training)
        assert layer.losses == []


def assert_initial(layer):
    """Check that each centroid counts as one member and is in use, and return the centroids."""
    centroids, sums, counts, unused = state_of(layer)
    assert np.array_equal(sums, centroids) and np.all(counts == 1) and np.all(unused == 0)
    return centroids


def test_the_first_centroids_are_normalised_distinct_directions_that_count_as_one_member():
    centroids = assert_initial(ready(routing()))
    assert_close(centroids.mean(-1), 0)
    assert_close(centroids.var(-1), np.ones((2, 3)), 1e-4)
    assert len(np.unique(centroids.reshape(6, 4), axis=0)) == 6


def test_start_from_data_makes_centroids_of_tokens():
    layer = ready(routing())
    layer.start_from_data(X)
    centroids = assert_initial(layer)
    kernel, bias = (to_numpy(weight.value) for weight in layer.weights[:2])
    tokens = np.einsum("btd,dnh->nbth", X, kernel) + bias[:, None, None]
    tokens = tokens - tokens.mean(-1, keepdims=True)
    tokens = (tokens / np.sqrt(tokens.var(-1, keepdims=True) + 1e-6)).reshape(2, -1, 4)
    for head in range(2):
        distance = np.abs(centroids[head][:, None] - tokens[head][None]).max(-1)
        assert np.all(distance.min(-1) < 1e-5) and len(set(distance.argmin(-1))) == 3


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


def test_random_clusters_follow_the_seed():
    patterns = [to_numpy(routing(selection="random", seed=seed).attention_pattern(X)) for seed in (7, 7, 8, None, None)]
    assert np.array_equal(patterns[0], patterns[1])
    assert not np.array_equal(patterns[0], patterns[2]) and not np.array_equal(patterns[3], patterns[4])
    unseeded = routing(selection="random", seed=None)
    copy = RoutingAttention.from_config(unseeded.get_config())
    assert np.array_equal(to_numpy(unseeded.attention_pattern(X)), to_numpy(copy.attention_pattern(X)))


def test_selections_of_all_tokens_under_a_causal_mask_warn_once():
    chunks = LSHAttention(2, 4, num_buckets=4, bucket_size=5, selection="chunks")
    layers = [routing(selection=selection, num_clusters=4) for selection in ("strided", "hash", "top_k")]
    for layer, pattern in [(chunks, "HashedChunk"), *((layer, "BestOfCluster") for layer in layers)]:
        with pytest.warns(UserWarning, match=rf"Attention \({pattern}\) under a causal mask is not causal"):
            layer(X, use_causal_mask=True)
    with pytest.warns(UserWarning, match="is not causal"):
        SparseAttention(2, 4, layer.pattern)(X, use_causal_mask=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(X, use_causal_mask=True)
        chunks(X, use_causal_mask=True)
        routing(selection="top_k")(X)
        routing()(X, use_causal_mask=True)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")
@pytest.mark.parametrize("selection", first(["top_k", "strided", "hash"], 1))
def test_a_graph_takes_queries_and_keys_of_any_two_lengths(selection):
    layer = routing(selection=selection, num_clusters=4, cluster_size=5, share_qk=False, position="relative")
    layer.build((2, 3, SIZE))
    with_random_weights(layer)

    @tf.function(input_signature=[tf.TensorSpec((None, None, SIZE))] * 2)
    def graph(query, value):
        return [run(query, value, use_causal_mask=True) for run in (layer, layer.attention_pattern)]

    for lengths in ((1, 1), (3, 2), (2, 9)):
        inputs = [normal(2, length, SIZE, seed=length) for length in lengths]
        output, pattern = graph(*inputs)
        expected = dense_call(layer, *inputs, causal=True)
        assert_close(output, expected.output, CLOSE)
        np.testing.assert_array_equal(pattern, expected.pattern)


def test_separate_keys_have_separate_documents():
    layer = SparseAttention(2, 4, Nearest(1, 6), seed=0)
    query, value = normal(1, 6, SIZE), normal(1, 5, SIZE, seed=1)
    documents, others = np.array([[7, 7, 7, -3, -3, -3]]), np.array([[-3, 7, 7, 7, 7]])
    packed = to_numpy(layer(query, value, segment_ids=documents, value_segment_ids=others))
    for document in (7, -3):
        own, seen = documents[0] == document, others[0] == document
        alone = layer(to_numpy(query)[:, own], to_numpy(value)[:, seen])
        assert_close(packed[:, own], alone)
