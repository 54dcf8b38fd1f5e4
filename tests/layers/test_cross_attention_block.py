"""Transformer blocks with cross-attention to an encoder sequence."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import CLOSE, SIZE, assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tf_sparse_attention.layers import (
    FeedForward,
    LocalAttention,
    MixedAttention,
    RoutingAttention,
    TransformerBlock,
)

X, ENCODED = normal(2, 9, SIZE), normal(2, 12, SIZE + 2, seed=1)
PADDING = np.arange(12) < np.array([[12], [7]])
ACROSS = {
    "blocks": lambda **own: LocalAttention(2, 4, block_size=3, key_block_size=4, name="across", **own),
    "heads": lambda **own: MixedAttention(
        [LocalAttention(1, 4, window=5, **own), LocalAttention(1, 4, block_size=9, key_block_size=12, **own)],
        name="across",
    ),
    "chosen_keys": lambda **own: RoutingAttention(
        2, 4, num_clusters=3, cluster_size=5, share_qk=False, selection="top_keys", name="across", **own
    ),
}


def block(kind="blocks", norm="pre", causal=True, common=None, **own):
    common = common or {}
    layer = TransformerBlock(
        LocalAttention(2, 4, window=3, **common),
        FeedForward(12, **common),
        norm=norm,
        causal=causal,
        cross_attention=ACROSS[kind](**common),
        **own,
    )
    layer.build(X.shape, encoder_sequence_shape=ENCODED.shape)
    return with_random_weights(layer)


@pytest.mark.parametrize(("kind", "norm"), [("blocks", "pre"), ("heads", "post"), ("chosen_keys", "post")])
def test_cross_attention_comes_between_self_attention_and_feed_forward(kind, norm):
    layer = block(kind, norm)

    def residual(x, sublayer, name):
        normalised = getattr(layer, f"_{name}_norm")
        return x + sublayer(normalised(x)) if norm == "pre" else normalised(x + sublayer(x))

    masks, mask = {"value_mask": PADDING}, np.arange(9) < np.array([[9], [5]])
    x = residual(X, lambda x: layer.attention(x, query_mask=mask, use_causal_mask=True), "attention")
    x = residual(x, lambda x: layer.cross_attention(x, ENCODED, query_mask=mask, **masks), "cross_attention")
    x = residual(x, layer.feed_forward, "feed_forward")
    output = layer(X, mask=mask, encoder_sequence=ENCODED, encoder_padding_mask=PADDING)
    assert_close(output, to_numpy(x), CLOSE)


def test_padding_of_either_sequence_changes_nothing():
    layer, changed, mask = block("heads"), ENCODED.copy(), np.arange(9) < np.array([[9], [5]])
    changed[~PADDING] = 9.0
    outputs = [layer(X, mask=mask, encoder_sequence=x, encoder_padding_mask=PADDING) for x in (ENCODED, changed)]
    assert_close(*map(to_numpy, outputs), 0)
    embedded = keras.layers.Masking(mask_value=9.0)(changed)  # the mask that the tensor carries
    assert_close(layer(X, mask=mask, encoder_sequence=embedded), to_numpy(outputs[0]), CLOSE)


@pytest.mark.parametrize("kind", first(["heads", "chosen_keys", "blocks"], 1))
def test_decoding_with_a_cache_is_the_full_pass(kind):
    layer = block(kind)
    given = {"encoder_sequence": ENCODED, "encoder_padding_mask": PADDING}
    whole = to_numpy(layer(X, **given))
    cache = layer.init_cache(2, 9, **given)
    output, cache = layer.prefill(X[:, :4], cache, **given)
    outputs = [output]
    decode = tf.function(layer.decode)
    for index in range(4, 9):
        output, cache = decode(X[:, index : index + 1], cache, tf.constant(index))
        outputs.append(output)
    assert_close(np.concatenate([to_numpy(x) for x in outputs], axis=1), whole, CLOSE)


def test_rows_of_a_padded_prompt_decode_separately():
    layer, lengths = block(norm="post"), np.array([4, 2])
    given = {"encoder_sequence": ENCODED, "encoder_padding_mask": PADDING}
    mask = np.arange(4) < lengths[:, None]
    whole = to_numpy(layer(X, **given))
    output, cache = layer.prefill(X[:, :4], layer.init_cache(2, 9, **given), mask, **given)
    assert_close(output, to_numpy(layer(X[:, :4], mask=mask, **given)), CLOSE)
    output, cache = layer.decode(np.stack([X[0, 4:5], X[1, 2:3]]), cache, lengths)
    assert_close(to_numpy(output)[:, 0], whole[[0, 1], lengths], CLOSE)


def test_a_block_decodes_after_a_memory():
    layer = block()
    whole = to_numpy(layer(X[:, 3:], memory=X[:, :3], encoder_sequence=ENCODED))
    cache = layer.init_cache(2, 9, memory=X[:, :3], encoder_sequence=ENCODED)
    output, cache = layer.prefill(X[:, 3:5], cache, encoder_sequence=ENCODED)
    assert_close(output, whole[:, :2], CLOSE)
    assert_close(layer.decode(X[:, 5:6], cache, 2)[0], whole[:, 2:3], CLOSE)


def test_rematerialization_does_not_change_gradients_of_the_encoder():
    results = []
    for remat in (False, True):
        layer, source = block(remat=remat, common={"seed": 1}), tf.constant(ENCODED)
        with tf.GradientTape() as tape:
            tape.watch(source)
            loss = tf.reduce_sum(tf.sin(layer(X, encoder_sequence=source, training=True)))
        results.append([to_numpy(x) for x in tape.gradient(loss, [source, *layer.trainable_weights])])
    for one, other in zip(*results, strict=True):
        assert_close(one, other, CLOSE * max(1, np.abs(one).max()))
    assert np.abs(results[0][0]).max() > 1e-3


def test_a_model_of_two_inputs_is_the_same_when_loaded(tmp_path):
    inputs, source = keras.Input((None, SIZE)), keras.Input((None, SIZE + 2))
    model = keras.Model([inputs, source], block("heads")(inputs, encoder_sequence=source))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded([X, ENCODED]), to_numpy(model([X, ENCODED])), 0)


def test_a_missing_or_different_encoder_sequence_is_named(subtests):
    layer, routed_layer, plain = block("heads"), block("chosen_keys"), TransformerBlock(LocalAttention(2, 4, window=3))

    def prefill(layer, other):
        cache = layer.init_cache(2, 9, encoder_sequence=ENCODED)
        return layer.prefill(X[:, :4], cache, encoder_sequence=other)

    for name, call in {
        "missing": lambda: layer(X),
        "missing for a cache": lambda: layer.init_cache(2, 9),
        "shorter": lambda: prefill(layer, ENCODED[:, :8]),
        "fewer rows": lambda: prefill(layer, ENCODED[:1]),
        "fewer rows of selected keys": lambda: prefill(routed_layer, ENCODED[:1]),
        "without cross-attention": lambda: plain(X, encoder_sequence=ENCODED),
    }.items():
        with subtests.test(name), pytest.raises(ValueError, match="`encoder_sequence` must be"):
            call()
