"""Transformer blocks: residuals and norms, the masks that they pass on, and rematerialization."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.contracts import SIZE, assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tests.layers.remat_models import stateful_block
from tf_sparse_attention import layers

X = normal(2, 9, SIZE)
MASK = np.arange(9) < np.array([[9], [5]])
SEGMENTS = np.repeat([[0, 1, 2]], [2, 4, 3], axis=1).repeat(2, 0).astype("int32")


def block(attention=None, common=None, **own):
    common = common or {}
    attention = layers.LocalAttention(2, 4, window=3, **common) if attention is None else attention
    layer = layers.TransformerBlock(attention, layers.FeedForward(12, seed=2, **common), **own)
    layer.build(X.shape)
    return with_random_weights(layer)


def norms(layer):
    """Return the norms of a block as functions of arrays: of attention, feed-forward, and of their results."""
    weights = {"/".join(weight.path.split("/")[-2:]): to_numpy(weight.value) for weight in layer.weights}

    def norm(name):
        def normalise(x):
            if layer.norm.endswith("rms"):
                return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + layer.epsilon) * weights[f"{name}/scale"]
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.epsilon)
            return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

        return normalise

    names = ["attention_norm", "feed_forward_norm"]
    return [norm(name) for name in names + [f"{name}_of_result" for name in names]]


def test_nan_in_padding_changes_neither_tokens_nor_gradients():
    layer = block(norm="post", causal=True)

    def outputs_and_gradients(x):
        with tf.GradientTape() as tape:
            y = ops.where(MASK[..., None], layer(x, mask=MASK), 0)
            loss = ops.sum(y * y)
        return y, *tape.gradient(loss, [weight.value for weight in layer.trainable_weights])

    found, expected = (outputs_and_gradients(np.where(MASK[..., None], X, value)) for value in (np.nan, 0.0))
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y, 0)


@pytest.mark.parametrize("norm", ["pre", "post_rms", "pre_and_post", "post", "pre_rms", "pre_and_post_rms"])
def test_norms_and_residuals_are_in_the_order_of_their_names(norm):
    causal = norm != "post"
    layer = block(norm=norm, causal=causal, epsilon=0.1)
    before_attention, before_feed_forward, *of_results = norms(layer)

    def attend(x):
        return to_numpy(layer.attention(x, use_causal_mask=causal))

    if norm.startswith("pre"):
        after = of_results if "post" in norm else [lambda x: x] * 2
        x = X + after[0](attend(before_attention(X)))
        expected = x + after[1](to_numpy(layer.feed_forward(before_feed_forward(x))))
    else:
        x = before_attention(X + attend(X))
        expected = before_feed_forward(x + to_numpy(layer.feed_forward(x)))
    assert_close(to_numpy(layer(X)), expected, 1e-5)


@pytest.mark.parametrize("remat", first([False, True], 1))
def test_masks_and_segments_are_passed_on(remat):
    parts = [layers.LocalAttention(2, 4, window=3), layers.GlobalLocalAttention(2, 4, window=3)]
    layer = layers.TransformerBlock(layers.MixedAttention(parts), remat=remat)
    layer.build(X.shape)
    with_random_weights(layer)
    normed = ops.convert_to_tensor(norms(layer)[0](X))
    plain = to_numpy(layer.attention(normed))
    for of_block, of_attention in [
        ({"attention_mask": np.eye(9, dtype=bool)}, {"attention_mask": np.eye(9, dtype=bool)}),
        ({"mask": MASK, "segment_ids": SEGMENTS}, {"query_mask": MASK, "segment_ids": SEGMENTS}),
        ({"global_mask": ~MASK}, {"global_mask": ~MASK}),
    ]:
        change = to_numpy(layer(X, training=remat, **of_block)) - X
        assert_close(change, to_numpy(layer.attention(normed, **of_attention)), 1e-5)
        assert np.abs(change - plain).max() > 0.01


def test_an_implicit_mask_equals_the_explicit_one_and_is_passed_on():
    layer, others = block(), {"segment_ids": SEGMENTS}
    x = keras.layers.Embedding(4, SIZE, mask_zero=True)(np.where(MASK, 2, 0))
    output = layer(x, **others)
    assert_close(to_numpy(output), to_numpy(layer(to_numpy(x), mask=MASK, **others)), 0)
    np.testing.assert_array_equal(output._keras_mask, MASK)
    assert np.any(to_numpy(output) != to_numpy(layer(to_numpy(x), **others)))


def test_dropout_applies_to_both_residuals_only_in_training():
    layer = block(dropout=0.5, seed=3)
    quiet = to_numpy(layer(X))
    noisy = to_numpy(layer(X, training=True))
    assert np.any(noisy != quiet) and np.any(noisy != to_numpy(layer(X, training=True)))
    for weight in layer.feed_forward.weights:
        weight.assign(ops.zeros_like(weight))
    change, kept = to_numpy(layer(X, training=True)) - X, to_numpy(layer(X, training=False)) - X
    ratio = (change / kept)[np.abs(kept) > 0.05]
    assert set(np.round(ratio, 2)) == {0.0, 2.0}


DTYPES = [("float32", "mixed_bfloat16"), ("bfloat16", "bfloat16"), ("mixed_bfloat16", "float32")]


@pytest.mark.parametrize(("own", "common"), first([*DTYPES, ("float64", "float64")], 2))
def test_sublayers_compute_in_their_own_dtypes(own, common):
    layer = block(norm="post", dropout=0.1, dtype=own, common={"dtype": common})
    output = layer(X, training=True)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    assert layer(keras.Input((None, SIZE))).dtype == layer.compute_dtype
    assert np.all(np.isfinite(to_numpy(output)))


def test_a_saved_model_is_the_same_when_loaded(tmp_path):
    layer = block(norm="post", causal=True, dropout=0.1, epsilon=1e-3, remat=True, seed=3, common={"dropout": 0.1})
    inputs, segments = keras.Input((None, SIZE)), keras.Input((None,), dtype="int32")
    model, batch = keras.Model([inputs, segments], layer(inputs, segment_ids=segments)), [X, SEGMENTS]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    names = ("norm", "causal", "dropout", "epsilon", "remat", "seed")
    copy = loaded.get_layer(layer.name)
    assert [getattr(copy, name) for name in names] == [getattr(layer, name) for name in names]
    assert_close(to_numpy(loaded(batch)), to_numpy(model(batch)), 0)


def test_a_block_has_the_same_gradients_and_losses_and_moves_its_state_once():
    results = []
    for remat in (False, True):
        block = stateful_block(remat)
        block.build((2, 13, SIZE))
        with_random_weights(block)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(tf.constant(normal(2, 13, SIZE)), training=True) ** 2) + sum(block.losses)
            gradients = tape.gradient(loss, [variable.value for variable in block.trainable_variables])
        losses = sorted(to_numpy(block.losses))
        results.append([loss, np.array(losses), *gradients, *(variable.value for variable in block.variables)])
    for a, b in zip(*map(to_numpy, results), strict=True):
        scale = max(1.0, np.abs(a).max())
        np.testing.assert_allclose(b / scale, a / scale, rtol=0, atol=1e-5)


def test_a_frozen_attention_inside_a_rematerialised_block_stays_as_it_is():
    block = stateful_block(remat=True)
    block.build((2, 13, SIZE))
    block.attention.trainable = False
    before = block.attention.get_weights()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(normal(2, 13, SIZE), training=True) ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in block.trainable_variables])
    assert all(np.any(to_numpy(tf.convert_to_tensor(gradient)) != 0) for gradient in gradients)
    for a, b in zip(before, block.attention.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
