"""Transformer blocks with cross-attention to an encoder sequence."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import CLOSE, SIZE, assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tf_sparse_attention.layers import FeedForward, LocalAttention, MixedAttention, RoutingAttention, TransformerBlock

X, ENCODED = normal(2, 9, SIZE), normal(2, 12, SIZE + 2, seed=1)
PADDING = np.arange(12) < np.array([[12], [7]])
GIVEN = {"encoder_sequence": ENCODED, "encoder_padding_mask": PADDING}
HEADS = {"window": 5}, {"block_size": 9, "key_block_size": 12}
SELECTED = {"share_qk": False, "selection": "top_keys"}
ACROSS = {
    "blocks": lambda **own: LocalAttention(2, 4, block_size=3, key_block_size=4, name="across", **own),
    "heads": lambda **own: MixedAttention([LocalAttention(1, 4, **blocks, **own) for blocks in HEADS], name="across"),
    "chosen_keys": lambda **own: RoutingAttention(2, 4, 3, 5, **SELECTED, name="across", **own),
}


def block(kind="blocks", norm="pre", causal=True, common=None, **own):
    common = common or {}
    parts = LocalAttention(2, 4, window=3, **common), FeedForward(12, **common)
    layer = TransformerBlock(*parts, norm=norm, causal=causal, cross_attention=ACROSS[kind](**common), **own)
    layer.build(X.shape, encoder_sequence_shape=ENCODED.shape)
    return with_random_weights(layer)


@pytest.mark.parametrize(("kind", "norm"), first([("heads", "post"), ("blocks", "pre"), ("chosen_keys", "post")], 1))
def test_cross_attention_comes_between_self_attention_and_feed_forward(kind, norm):
    layer = block(kind, norm)

    def residual(x, sublayer, name):
        normalised = getattr(layer, f"_{name}_norm")
        return x + sublayer(normalised(x)) if norm == "pre" else normalised(x + sublayer(x))

    masks, mask = {"value_mask": PADDING}, np.arange(9) < np.array([[9], [5]])
    x = residual(X, lambda x: layer.attention(x, query_mask=mask, use_causal_mask=True), "attention")
    x = residual(x, lambda x: layer.cross_attention(x, ENCODED, query_mask=mask, **masks), "cross_attention")
    x = residual(x, layer.feed_forward, "feed_forward")
    output = layer(X, mask=mask, **GIVEN)
    assert_close(output, to_numpy(x), CLOSE)


def test_padding_of_either_sequence_changes_nothing():
    layer, changed, mask = block("heads"), ENCODED.copy(), np.arange(9) < np.array([[9], [5]])
    changed[~PADDING] = 9.0
    outputs = [layer(X, mask=mask, encoder_sequence=x, encoder_padding_mask=PADDING) for x in (ENCODED, changed)]
    assert_close(*map(to_numpy, outputs), 0)
    embedded = keras.layers.Masking(mask_value=9.0)(changed)  # the mask that the tensor carries
    assert_close(layer(X, mask=mask, encoder_sequence=embedded), to_numpy(outputs[0]), CLOSE)


def test_rows_of_a_padded_prompt_decode_separately():
    layer, lengths = block(norm="post"), np.array([4, 2])
    mask = np.arange(4) < lengths[:, None]
    whole = to_numpy(layer(X, **GIVEN))
    output, cache = layer.extend(X[:, :4], layer.init_cache(2, 9, **GIVEN), mask)
    assert_close(to_numpy(output)[mask], whole[:, :4][mask], CLOSE)
    output, cache = layer.extend(np.stack([X[0, 4:5], X[1, 2:3]]), cache, index=lengths)
    assert_close(to_numpy(output)[:, 0], whole[[0, 1], lengths], CLOSE)


@pytest.mark.full
def test_a_block_decodes_after_a_memory():
    layer = block()
    whole = to_numpy(layer(X[:, 3:], memory=X[:, :3], encoder_sequence=ENCODED))
    cache = layer.init_cache(2, 9, memory=X[:, :3], encoder_sequence=ENCODED)
    output, cache = layer.extend(X[:, 3:5], cache)
    assert_close(output, whole[:, :2], CLOSE)
    assert_close(layer.extend(X[:, 5:6], cache, index=2)[0], whole[:, 2:3], CLOSE)


@pytest.mark.full
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


def test_a_missing_encoder_sequence_is_named(subtests):
    layer, plain = block("heads"), TransformerBlock(LocalAttention(2, 4, window=3))
    for name, call in {
        "missing": lambda: layer(X),
        "missing for a cache": lambda: layer.init_cache(2, 9),
        "without cross-attention": lambda: plain(X, encoder_sequence=ENCODED),
    }.items():
        with subtests.test(name), pytest.raises(ValueError, match="`encoder_sequence` must be"):
            call()


PUBLISHED = {"selection": "top_k", "share_qk": False, "reproduce_reference": True}


def routed(name="across", **own):
    return RoutingAttention(2, 4, 3, 5, name=name, **{**PUBLISHED, **own})


def published_block(causal=False, attention=None, across=None, **own):
    """Return a block as in the published code: padding counts, and cross-attention is routed."""
    own = {"norm": "post", "reproduce_reference": True, "cross_attention": across or routed(), **own}
    layer = TransformerBlock(attention or routed("within"), causal=causal, **own)
    layer.build(X.shape, encoder_sequence_shape=ENCODED.shape)
    return with_random_weights(layer)


def test_padding_and_pairs_of_a_published_block_are_masked_but_padding_counts():
    layer, mask, pairs = published_block(), np.arange(9) < np.array([[9], [5]]), np.tril(np.ones((9, 9), bool))
    x = layer._attention_norm(X + layer.attention(X, attention_mask=(pairs & mask[:, None])[:, None]))
    x = layer._cross_attention_norm(x + layer.cross_attention(x, ENCODED, attention_mask=PADDING[:, None, None]))
    output = layer(X, mask, pairs, **GIVEN)
    assert_close(output, to_numpy(x), CLOSE)
    absent = published_block(reproduce_reference=False)(X, mask, pairs, **GIVEN)
    assert np.abs(to_numpy(absent) - to_numpy(output))[mask].max() > 1e-3
    with pytest.raises(ValueError, match="`attention_mask` must be boolean"):
        layer(X, mask, pairs.astype("float32"), encoder_sequence=ENCODED)
    again = TransformerBlock.from_config(layer.get_config())
    assert again.reproduce_reference and again.cross_attention.reproduce_reference


def test_published_routed_cross_attention_of_a_causal_block_warns_that_it_is_not_causal():
    local, across = LocalAttention(2, 4, window=3), MixedAttention([routed("one"), LocalAttention(1, 4, window=3)])
    layer = published_block(causal=True, attention=local, across=across)
    assert not layer.causal_selection and local.pattern.causal_selection
    with pytest.warns(UserWarning, match="as cross-attention of a causal block is not causal: its clusters depend on"):
        output = to_numpy(layer(X, encoder_sequence=ENCODED))
    changed = np.concatenate([X[:, :-1], -X[:, -1:]], axis=1)
    assert np.abs(to_numpy(layer(changed, encoder_sequence=ENCODED)) - output)[:, :-1].max() > 1e-3


def test_a_published_block_has_no_cache_and_refuses_other_routed_cross_attention():
    local, other = {"causal": True, "attention": LocalAttention(2, 4, window=3)}, {"reproduce_reference": False}
    for own, reason in (({}, "the selection depends on padding"), (other, "a cluster depend on la")):
        layer = published_block(**local, **own)
        assert reason in layer.cache_unsupported_reason
        with pytest.raises(ValueError, match=reason):
            layer.init_cache(2, 9, encoder_sequence=ENCODED)
    for own in (other, {"share_qk": True}):
        with pytest.raises(ValueError, match="`cross_attention` of a causal block"):
            published_block(**local, across=routed(**own))
