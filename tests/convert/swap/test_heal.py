"""Sparse attention that learns the outputs of the dense attention in whose place it is."""

import keras
import numpy as np
import pytest

from tests.convert.swap.swap_models import difference, ids, local, randomized, transformer
from tests.draws import first
from tf_sparse_attention.convert import arguments_of, heal, replace_attention
from tf_sparse_attention.layers import LocalAttention, RoutingAttention


@pytest.fixture(scope="module")
def dense():
    return transformer(use_causal_mask=True, num_layers=1)


def batches(count, first=0):
    return [(ids(seed=seed), None) for seed in range(first, first + count)]


def weights_of(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_errors_fall_and_nothing_but_the_sparse_attention_changes():
    dense = transformer(use_causal_mask=True)
    sparse = replace_attention(dense, local(2), print_fn=None)
    sparse.layers[-1].trainable = False
    flags = [weight.trainable for weight in (*dense.weights, *sparse.weights)]
    before = [weights_of(model) for model in (dense, sparse)]
    healing = heal(dense, sparse, batches(30), optimizer=keras.optimizers.Adam(1e-2), verbose=False)
    assert list(healing.before) == ["attention_0", "attention_1"]
    assert all(healing.after[path] < healing.before[path] for path in healing.before)
    assert sum(healing.after.values()) < 0.7 * sum(healing.before.values())
    assert healing.steps == 29
    assert "attention_0: 0." in str(healing)
    assert all((old == new).all() for old, new in zip(before[0], weights_of(dense), strict=True))
    attention = {id(weight) for layer in sparse.layers if isinstance(layer, LocalAttention) for weight in layer.weights}
    for old, new, weight in zip(before[1], weights_of(sparse), sparse.weights, strict=True):
        assert (old == new).all() != (id(weight) in attention)
    assert flags == [weight.trainable for weight in (*dense.weights, *sparse.weights)]


@pytest.mark.full
@pytest.mark.parametrize("start_from_data", first([True, False], 1))
def test_centroids_begin_with_tokens_and_move(dense, start_from_data):
    def routed(attention):
        routing = {"num_clusters": 3, "cluster_size": 4, "share_qk": False, "ema_decay": 0.9, "seed": 0}
        return RoutingAttention(**{**arguments_of(attention), **routing})

    sparse = replace_attention(dense, routed, print_fn=None)
    layer = sparse.get_layer("attention_0")
    first = keras.ops.convert_to_numpy(layer.centroids)
    seen = []

    def first_batch():
        yield from batches(1)
        seen.append(keras.ops.convert_to_numpy(layer.centroids))
        yield from batches(2, 1)

    heal(dense, sparse, first_batch(), start_from_data=start_from_data, verbose=False)
    assert (difference(first, seen[0]) > 1e-3) == start_from_data
    assert difference(seen[0], layer.centroids) > 1e-4


@pytest.mark.full
def test_padding_and_returned_scores_count_for_nothing():
    inputs, shift = keras.Input((12, 16)), keras.Input((12, 16))
    x = keras.layers.Masking()(inputs)
    output, scores = keras.layers.MultiHeadAttention(2, 8, name="attention")(x, x, return_attention_scores=True)
    dense = randomized(keras.Model([inputs, shift], [output + shift, scores]))
    sparse = replace_attention(dense, local(2), print_fn=None)
    batch = np.random.default_rng(0).normal(size=(2, 2, 12, 16)).astype("float32")
    batch[0, 1, 7:] = 0
    real = batch[0].any(-1)
    wanted, found = (keras.ops.convert_to_numpy(model([*batch])[0] - batch[1])[real] for model in (dense, sparse))
    healing = heal(dense, sparse, [[*batch], [0 * batch[0], batch[1]]], verbose=False)
    assert healing.before["attention"] == pytest.approx(np.square(found - wanted).sum() / np.square(wanted).sum())
    assert healing.after["attention"] == healing.before["attention"]  # from padding alone there is nothing to learn


def test_invalid_arguments_are_errors(dense, subtests):
    sparse = replace_attention(dense, local(2), print_fn=None)
    two_layers = transformer(use_causal_mask=True)
    for message, models, dataset, options in [
        ("`dataset` must have at least two batches.*: 0", (dense, sparse), [], {}),
        ("`dataset` must have at least two batches.*: 1", (dense, sparse), batches(1), {}),
        ("`dataset` must be a list.*: dict", (dense, sparse), {"ids": ids()}, {}),
        ("`dataset` must be a list.*: str", (dense, sparse), "text", {}),
        ("`dataset` must be a list.*: None", (dense, sparse), None, {}),
        ("`dataset` must have batches of model inputs", (dense, sparse), ["a text", "another"], {}),
        ("`steps`", (dense, sparse), batches(2), {"steps": 0}),
        ("`sparse` must be the result of `replace_attention`", (dense, dense), batches(2), {}),
        ("a NoneType for a NoneType", (None, None), batches(2), {}),
        ("a Sequential for a Functional", (dense, keras.Sequential(sparse.layers[:1])), batches(2), {}),
        ("`sparse` .*without an attention for attention_1", (two_layers, sparse), batches(2), {}),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            heal(*models, dataset, verbose=False, **options)
    for layer in sparse.layers:
        layer.trainable = False
    with pytest.raises(ValueError, match="`sparse` must have attention with trainable weights"):
        heal(dense, sparse, batches(2))


@pytest.mark.full
def test_low_rank_kernels_of_a_decoder_are_healed_alone():
    pytest.importorskip("keras_hub")
    from tests.convert.swap.decoder_models import VOCABULARY, decoder

    dense = decoder("gemma2")
    rng = np.random.default_rng(0)

    def batch():
        mask = np.ones((2, 16), "int32")
        mask[1, 11:] = 0
        return {"token_ids": rng.integers(1, VOCABULARY, (2, 16)) * mask, "padding_mask": mask}

    sparse = replace_attention(dense, lambda x: LocalAttention(**arguments_of(x, window=2)), print_fn=None)
    sparse.backbone.enable_lora(4)
    before = weights_of(sparse)
    healing = heal(dense, sparse, [batch() for _ in range(20)], optimizer=keras.optimizers.Adam(1e-2), verbose=False)
    changed = [
        weight.path.rsplit("/", 1)[1]
        for old, new, weight in zip(before, weights_of(sparse), sparse.weights, strict=True)
        if (old != new).any()
    ]
    assert set(changed) == {"lora_kernel_a", "lora_kernel_b"}
    assert all(healing.after[path] < healing.before[path] for path in healing.before)
