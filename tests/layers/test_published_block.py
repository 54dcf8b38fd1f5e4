"""Transformer blocks as in the published code: padding that counts, and routed cross-attention."""

import numpy as np
import pytest

from tests.contracts import CLOSE, SIZE, assert_close, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import LocalAttention, MixedAttention, RoutingAttention, TransformerBlock

X, ENCODED = normal(2, 9, SIZE), normal(2, 12, SIZE, seed=1)
MASK = np.arange(9) < np.array([[9], [5]])
PADDING = np.arange(12) < np.array([[12], [7]])
AHEAD = "as cross-attention of a causal block is not causal: its clusters depend on later queries"


def routed(name, **own):
    published = {"selection": "top_k", "share_qk": False, "reproduce_reference": True}
    return RoutingAttention(2, 4, num_clusters=3, cluster_size=5, name=name, **{**published, **own})


def block(causal=False, attention=None, across=None, **own):
    layer = TransformerBlock(
        routed("within") if attention is None else attention,
        causal=causal,
        cross_attention=routed("across") if across is None else across,
        **{"norm": "post", "reproduce_reference": True, **own},
    )
    layer.build(X.shape, encoder_sequence_shape=ENCODED.shape)
    return with_random_weights(layer)


def test_padding_and_pairs_are_masked_but_padding_counts():
    layer, pairs = block(), np.tril(np.ones((9, 9), bool))
    x = layer._attention_norm(X + layer.attention(X, attention_mask=(pairs & MASK[:, None])[:, None]))
    x = layer._cross_attention_norm(x + layer.cross_attention(x, ENCODED, attention_mask=PADDING[:, None, None]))
    output = layer(X, MASK, pairs, encoder_sequence=ENCODED, encoder_padding_mask=PADDING)
    assert_close(output, to_numpy(x), CLOSE)
    absent = block(reproduce_reference=False)(X, MASK, pairs, encoder_sequence=ENCODED, encoder_padding_mask=PADDING)
    assert np.abs(to_numpy(absent) - to_numpy(output))[MASK].max() > 1e-3
    with pytest.raises(ValueError, match="`attention_mask` must be boolean"):
        layer(X, MASK, pairs.astype("float32"), encoder_sequence=ENCODED)


def test_published_routed_cross_attention_of_a_causal_block_warns_that_it_is_not_causal():
    local = LocalAttention(2, 4, window=3)
    layer = block(causal=True, attention=local, across=MixedAttention([routed("one"), LocalAttention(1, 4, window=3)]))
    assert not layer.causal_selection and local.pattern.causal_selection
    with pytest.warns(UserWarning, match=AHEAD):
        output = to_numpy(layer(X, encoder_sequence=ENCODED))
    changed = np.concatenate([X[:, :-1], -X[:, -1:]], axis=1)
    assert np.abs(to_numpy(layer(changed, encoder_sequence=ENCODED)) - output)[:, :-1].max() > 1e-3


def test_it_has_no_cache_and_refuses_other_routed_cross_attention():
    local = {"causal": True, "attention": LocalAttention(2, 4, window=3)}
    for own, reason in (
        ({}, "the selection depends on padding"),
        ({"reproduce_reference": False}, "a cluster depend on la"),
    ):
        layer = block(**local, **own)
        assert reason in layer.cache_unsupported_reason
        with pytest.raises(ValueError, match=reason):
            layer.init_cache(2, 9, encoder_sequence=ENCODED)
    for own in ({"reproduce_reference": False}, {"share_qk": True}):
        with pytest.raises(ValueError, match="`cross_attention` of a causal block"):
            block(**local, across=routed("across", **own))


def test_its_config_makes_the_same_block():
    again = TransformerBlock.from_config(block().get_config())
    assert again.reproduce_reference and again.cross_attention.reproduce_reference
