"""Every message of the layers that has variables in it, triggered once."""

import functools

import keras
import numpy as np
import pytest

from tests.contracts import SIZE, normal
from tf_sparse_attention.layers import (
    AdaptiveEmbedding,
    AdaptiveSoftmax,
    AttentionLayer,
    DenseAttention,
    FeedForward,
    GridEmbedding,
    LocalAttention,
    LocalAttention2D,
    LSHAttention,
    MixedAttention,
    RoutingAttention,
    SinusoidalEmbedding,
    SoftmaxFeedForward,
    SparseAttention,
    SwappedAttention,
    TransformerBlock,
)
from tf_sparse_attention.layers.parts.call_inputs import check_attention_mask
from tf_sparse_attention.models import StatefulModel
from tf_sparse_attention.patterns import Nearest, Successors, Window


def local(**own):
    return LocalAttention(**{"num_heads": 2, "key_dim": 4, **own})


def routing(**own):
    return RoutingAttention(**{"num_heads": 2, "key_dim": 4, "num_clusters": 3, "cluster_size": 4, **own})


def block(**own):
    return TransformerBlock(**{"attention": local(), **own})


WRONG_ARGUMENTS = [
    (local, "num_heads", 0, "`num_heads` must be a positive integer. Received: num_heads=0."),
    (local, "key_dim", 2.0, "`key_dim` must be a positive integer. Received: key_dim=2.0."),
    (local, "value_dim", "4", "`value_dim` must be a positive integer. Received: value_dim='4'."),
    (local, "max_distance", -1, "`max_distance` must be a positive integer. Received: max_distance=-1."),
    (local, "seed", -1, "`seed` must be an integer of at least 0. Received: seed=-1."),
    (local, "dropout", 1, "`dropout` must be a number in [0, 1). Received: dropout=1."),
    (local, "dropout", True, "`dropout` must be a number in [0, 1). Received: dropout=True."),
    (local, "output_shape", (3, 0), "`output_shape` must be a positive integer. Received: output_shape=0."),
    (local, "output_shape", 2.5, "`output_shape` must be a sequence of integers. Received: output_shape=2.5."),
    (local, "block_size", True, "`block_size` must be a positive integer. Received: block_size=True."),
    (local, "num_blocks_before", -1, "`num_blocks_before` must be an integer of at least 0. Received: "),
    (local, "num_blocks_after", 0.5, "`num_blocks_after` must be an integer of at least 0. Received: "),
    (local, "window", 0, "`window` must be a positive integer. Received: window=0."),
    (
        local,
        "position",
        "absolute",
        "`position` must be one of [None, 'relative', 'rotary', 'alibi']. Received: position='absolute'.",
    ),
    (routing, "num_clusters", 0, "`num_clusters` must be a positive integer. Received: num_clusters=0."),
    (routing, "cluster_size", None, "`cluster_size` must be a positive integer. Received: cluster_size=None."),
    (
        routing,
        "selection",
        "best",
        "`selection` must be one of ['nearest', 'top_k', 'strided', 'hash', 'top_keys', 'random']. Received: "
        "selection='best'.",
    ),
    (routing, "distance", "true", "`distance` must be one of ['rank', 'token']. Received: distance='true'."),
    (routing, "ema_decay", 1.0, "`ema_decay` must be a number in [0, 1). Received: ema_decay=1.0."),
    (routing, "ema_decay", float("nan"), "`ema_decay` must be a number in [0, 1). Received: ema_decay=nan."),
    (
        routing,
        "commitment_loss",
        -1e-4,
        "`commitment_loss` must be a number of at least 0. Received: commitment_loss=-0.0001.",
    ),
    (routing, "revive_after", -1, "`revive_after` must be an integer of at least 0. Received: revive_after=-1."),
    (
        FeedForward,
        "intermediate_dim",
        0,
        "`intermediate_dim` must be a positive integer. Received: intermediate_dim=0.",
    ),
    (block, "norm", "both", "`norm` must be one of ['pre', 'post', 'pre_and_post', 'pre_rms', 'post_rms', "),
    (block, "dropout", -0.1, "`dropout` must be a number in [0, 1). Received: dropout=-0.1."),
    (block, "seed", 0.5, "`seed` must be an integer of at least 0. Received: seed=0.5."),
    (block, "epsilon", 0, "`epsilon` must be a positive number. Received: epsilon=0."),
    (
        block,
        "attention",
        "local",
        "`attention` must be an attention layer of this library. Received: attention='local'.",
    ),
    (block, "feed_forward", 64, "`feed_forward` must be a Keras layer or None. Received: feed_forward=64."),
]


@pytest.mark.parametrize(("make", "name", "value", "message"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named_with_what_was_expected_and_received(make, name, value, message):
    with pytest.raises(ValueError) as error:
        make(**{name: value})
    assert str(error.value).startswith(message)


FURTHER_ARGUMENTS = [
    (
        lambda: local(key_dim=5, position="rotary"),
        "`key_dim` must be even for rotary positions. Received: key_dim=5, position='rotary'.",
    ),
    (
        lambda: LocalAttention2D(2, 6, width=4, position="rotary_2d"),
        "`key_dim` must be a multiple of 4 for rotary positions. Received: key_dim=6, position='rotary_2d'.",
    ),
    (
        lambda: local(position="rotary_2d"),
        "`position` must be one of [None, 'relative', 'rotary', 'alibi']. Received: position='rotary_2d'.",
    ),
    (
        lambda: local(max_distance=3, position="alibi"),
        "`max_distance` must be None unless `position` is 'relative' or 'relative_2d'. "
        "Received: max_distance=3, position='alibi'.",
    ),
    (
        lambda: routing(distance="token", position="rotary"),
        "`distance` must be 'rank' unless `position` is 'relative'. Received: distance='token', position='rotary'.",
    ),
    (
        lambda: routing(use_successor_values=True, selection="top_k"),
        "`selection` must be 'nearest' or 'random' with `use_successor_values`. Received: selection='top_k'.",
    ),
    (
        lambda: routing(selection="top_keys"),
        "`share_qk` must be False with selection='top_keys'. Received: share_qk=True.",
    ),
    (
        lambda: routing(selection="top_keys", share_qk=False, mask_self=True),
        "`mask_self` must be False with selection='top_keys'. Received: mask_self=True.",
    ),
    (
        lambda: routing(selection="top_keys", share_qk=False, reproduce_reference=True),
        "`reproduce_reference` must be False with selection='top_keys'. Received: reproduce_reference=True.",
    ),
    (
        lambda: routing(use_successor_values=True, mask_self=False),
        "`mask_self` must be None or True with `use_successor_values`, because no token attends to itself. "
        "Received: mask_self=False.",
    ),
    (
        lambda: routing(use_successor_values=None),
        "`use_successor_values` must be True or False. Received: use_successor_values=None.",
    ),
    (
        lambda: local(use_successor_values=True),
        "`window` must be given with `use_successor_values`. Received: window=None.",
    ),
    (
        lambda: LSHAttention(2, 4, num_buckets=2, bucket_size=4, use_successor_values=True, selection="chunks"),
        "`selection` must be 'band' with `use_successor_values`. Received: selection='chunks'.",
    ),
    (lambda: FeedForward(8, use_bias=1), "`use_bias` must be True or False. Received: use_bias=1."),
    (
        lambda: local(window=3, num_blocks_before=1),
        "`num_blocks_before` and `num_blocks_after` must be None if `window` is given. Received: window=3, "
        "num_blocks_before=1, num_blocks_after=None.",
    ),
    (
        lambda: FeedForward(8, activation="reglu"),
        "`activation` must be one of ['relu', 'gelu', 'exact_gelu', 'quick_gelu', 'geglu', 'swiglu']. "
        "Received: activation='reglu'.",
    ),
    (lambda: FeedForward(8, dropout=2), "`dropout` must be a number in [0, 1). Received: dropout=2."),
    (lambda: FeedForward(8, seed="1"), "`seed` must be an integer of at least 0. Received: seed='1'."),
    (lambda: MixedAttention([]), "`parts` must be a list of attention layers of this library. Received: parts=[]."),
    (
        lambda: MixedAttention([local(), keras.layers.MultiHeadAttention(2, 4, name="mha")]),
        "`parts` must be a list of attention layers of this library. Received: parts=[<LocalAttention ",
    ),
]


@pytest.mark.parametrize(("make", "message"), FURTHER_ARGUMENTS)
def test_arguments_that_do_not_fit_each_other_are_named(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)


X, SHORT = normal(2, 6, SIZE), normal(2, 4, SIZE)


def mask(*shape):
    return np.ones(shape, bool)


WRONG_CALLS = [
    (
        local,
        {"query": X[:, :0]},
        "`query` must have shape (batch, positions, features) with at least one position and a known number of "
        "features. Received: query of shape (2, 0, 8).",
    ),
    (local, {"query": X[0]}, "Received: query of shape (6, 8)."),
    (local, {"query": X, "value": X[0]}, "`value` must have shape (batch, positions, features) with at least one"),
    (local, {"query": X, "value": X, "key": X[0]}, "`key` must have shape (batch, positions, features) with at least"),
    (
        local,
        {"query": X, "value": SHORT, "key": X},
        "`key` and `value` must have the same number of positions. Received: key of shape (2, 6, 8), value of shape "
        "(2, 4, 8).",
    ),
    (
        local,
        {"query": X, "value": SHORT[:1]},
        "`query`, `value` and `key` must have the same batch size. Received: query of shape (2, 6, 8), value of shape "
        "(1, 4, 8), key of shape (1, 4, 8).",
    ),
    (local, {"query": X, "key": X}, "`value` must be given where `key` is. Received: value=None and a key."),
    (
        routing,
        {"query": X, "value": SHORT},
        "`value` and `key` must be None, or `query` itself, where queries are used as keys. Pass share_qk=False to "
        "RoutingAttention. Received: a value other than the query.",
    ),
    (
        lambda: routing(share_qk=False, selection="nearest"),
        {"query": X, "value": SHORT},
        "`selection` must be one of ['top_k', 'strided', 'hash', 'top_keys'] if `query` and `value` have different "
        "lengths. Received: selection='nearest', lengths 6 and 4.",
    ),
    (
        local,
        {"query": X, "query_mask": mask(2, 5)},
        "`query_mask` must have shape (2 or 1, 6). Received: query_mask of",
    ),
    (
        local,
        {"query": X, "value_mask": mask(3, 6)},
        "`value_mask` must have shape (2 or 1, 6). Received: value_mask of",
    ),
    (
        local,
        {"query": X, "value": SHORT, "key_mask": mask(2, 6)},
        "`key_mask` must have shape (2 or 1, 4). Received: key_mask of shape (2, 6).",
    ),
    (
        local,
        {"query": X, "attention_mask": mask(6)},
        "`attention_mask` must have rank 2 (T, S), 3 (B, T, S) or 4 (B, N, T, S). Received: "
        "attention_mask of shape (6,).",
    ),
    (
        local,
        {"query": X, "attention_mask": mask(2, 6)},
        "`attention_mask` of rank 2 must have shape (T, S). Pass a padding mask, (B, S), as `query_mask` or "
        "`key_mask`. Received: attention_mask of shape (2, 6), 6 queries.",
    ),
    (
        local,
        {"query": X, "attention_mask": mask(2, 3, 6, 6)},
        "`attention_mask` must have shape (2 or 1, 2 or 1, 6 or 1, 6 or 1). Received: "
        "attention_mask of shape (2, 3, 6, 6).",
    ),
    (
        lambda: MixedAttention([local(), local()]),
        {"query": X, "attention_mask": mask(2, 3, 6, 6)},
        "`attention_mask` must have shape (2 or 1, 4 or 1, 6 or 1, 6 or 1). Received: "
        "attention_mask of shape (2, 3, 6, 6).",
    ),
    (
        lambda: MixedAttention([local(), local()]),
        {"query": X, "attention_mask": mask(2, 5, 6, 6)},
        "`attention_mask` must have shape (2 or 1, 4 or 1, 6 or 1, 6 or 1). Received: "
        "attention_mask of shape (2, 5, 6, 6).",
    ),
    (
        local,
        {"query": X, "segment_ids": np.zeros((1, 6), "int32")},
        "`segment_ids` must have shape (2, 6). Received: segment_ids of shape (1, 6).",
    ),
    (
        local,
        {"query": X, "value": SHORT, "segment_ids": np.zeros((2, 6), "int32")},
        "`value_segment_ids` must be given with `segment_ids` where `query` and `value` have different lengths. "
        "Received: query of shape "
        "(2, 6, 8), value of shape (2, 4, 8).",
    ),
]


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize(("make", "inputs", "message"), WRONG_CALLS)
def test_inputs_that_do_not_fit_are_refused_in_the_first_call_and_later(make, inputs, message, built):
    layer = make()
    if built:
        layer(X)
    with pytest.raises(ValueError) as error:
        layer(**inputs)
    assert message in str(error.value)


def test_unknown_masks_of_a_pattern_are_refused():
    with pytest.raises(ValueError, match=r"`masks` must be among \['query_mask', .*\]. Received: \['padding_mask'\]\."):
        local().attention_pattern(X, padding_mask=mask(2, 6))
    with pytest.raises(ValueError, match=r"`padding_mask` must not be set unless a part of .* accepts it"):
        MixedAttention([local()]).attention_pattern(X, padding_mask=mask(2, 6))


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (local, "causal", r"layer with `use_causal_mask=True`"),
        (block, "use_causal_mask", r"a block with `causal=True`"),
        (local, "padding_mask", r"is `query_mask` or `key_mask` of an attention"),
        (local, "use_casual_mask", r"Did you mean `use_causal_mask`\?"),
        (lambda: MixedAttention([local()]), "key_msk", r"Did you mean `key_mask`\?"),
        (block, "encoder_sequnce", r"Did you mean `encoder_sequence`\?"),
    ],
)
def test_a_name_that_a_call_does_not_take_says_which_it_takes(make, name, hint):
    with pytest.raises(ValueError, match=rf"`{name}` must not be set .*{hint}.* Received: \['{name}'\]"):
        make()(X, **{name: mask(2, 6)})


def test_more_clusters_than_tokens_cannot_start_from_data():
    message = r"`x` must hold at least `num_clusters` tokens to start from\. Received: 2 tokens, num_clusters=3\."
    with pytest.raises(ValueError, match=message):
        routing().start_from_data(X[:1, :2])


def test_more_clusters_than_unmasked_tokens_cannot_start_from_data():
    message = r"`mask` must leave at least `num_clusters` tokens .* Received: 2 tokens, num_clusters=3\."
    with pytest.raises(ValueError, match=message):
        routing().start_from_data(X[:1], np.arange(X.shape[1])[None] < 2)


def test_features_must_be_known():
    with pytest.raises(ValueError, match=r"Received: query of shape \(None, 6, None\)\."):
        local()(keras.Input((6, None)))


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda layer: layer.pattern, "pattern"),
        (lambda layer: layer(X), "pattern"),
        (lambda layer: layer.attention_pattern(X), "pattern"),
    ],
)
def test_a_subclass_is_told_what_it_has_to_define(use, name):
    class Unfinished(AttentionLayer):
        pass

    with pytest.raises(NotImplementedError, match=rf"Unfinished must define `{name}`\."):
        use(Unfinished(2, 4))


def test_a_mask_with_more_entries_than_an_index_can_hold_is_refused():
    message = r"`attention_mask` must have fewer than 2\^31 entries; .* Received: .*\(65536, 65536\)"
    with pytest.raises(ValueError, match=message):
        check_attention_mask(keras.KerasTensor((65536, 65536), dtype="bool"), 1, 8, 65536, 65536)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda: LocalAttention(2, 4, windw=3), "window"),
        (lambda: LocalAttention(2, 4, window=3, drpout=0.1), "dropout"),
        (lambda: MixedAttention([local()], part=3), "parts"),
        (lambda: local(num_kv_heads=2), "num_key_value_heads"),
        (lambda: local(soft_cap=2.0), "logit_soft_cap"),
        (lambda: local(qk_norm=True), "use_query_key_norm"),
        (lambda: block(causl=True), "causal"),
        (lambda: SwappedAttention(local(), causl=True), "causal"),
        (lambda: SoftmaxFeedForward(8, drpout=0.1), "dropout"),
        (lambda: AdaptiveEmbedding(9, 8, [3], div_valu=2), "div_value"),
        (lambda: AdaptiveSoftmax(9, [3], cutofs=[2]), "cutoffs"),
        (lambda: GridEmbedding((2, 3), sed=1), "seed"),
        (lambda: SinusoidalEmbedding(max_wavelenth=9), "max_wavelength"),
        (lambda: StatefulModel(None, 2, batch_siz=2), "batch_size"),
    ],
)
def test_a_typing_error_in_a_name_suggests_the_right_one(make, right):
    with pytest.raises(ValueError, match=rf"is not an argument of .*\. Did you mean `{right}`\?"):
        make()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("attention_axes", 2, "`attention_axes` must be one of [None, (1,), (1, 2)]. Received: attention_axes=(2,)."),
        (
            "flash_attention",
            True,
            "`flash_attention` must be None or False with DenseAttention. Kernels are chosen automatically. "
            "Received: flash_attention=True.",
        ),
        (
            "sliding_window",
            0,
            "`sliding_window` must be None with DenseAttention. Use `window` of a layer that has it, such as "
            "`LocalAttention`. Received: sliding_window=0.",
        ),
    ],
)
def test_what_keras_has_alone_is_refused_unless_it_asks_for_nothing(name, value, message):
    make = functools.partial(DenseAttention, 2, 4)
    with pytest.raises(ValueError) as error:
        make(**{name: value})
    assert str(error.value) == message
    assert make(**{name: None}, name="same").get_config() == make(name="same").get_config()


def test_a_name_that_is_like_no_other_is_for_keras_to_refuse():
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        LocalAttention(2, 4, colour="red")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda layer, x: layer(x), r"`use_causal_mask` must be True with \w+ \(Successors\)"),
        (lambda layer, x: layer.attention_pattern(x), r"`use_causal_mask` must be True with \w+ \(Successors\)"),
        (
            lambda layer, x: layer(x, x + 1, use_causal_mask=True),
            r"`value` and `key` must be None, or `query` itself, with \w+ \(\w+\), which requires causal",
        ),
        (
            lambda layer, x: layer.init_cross_cache(x),
            r"\w+ \(\w+\) requires causal self-attention",
        ),
    ],
)
def test_successor_values_are_for_causal_self_attention(run, message):
    patterns = Successors(Window(3)), Window(2) | Successors(Nearest(2, 3))
    for layer in (*(SparseAttention(2, 4, pattern) for pattern in patterns), routing(use_successor_values=True)):
        layer.build((None, None, 8))
        with pytest.raises(ValueError, match=message):
            run(layer, keras.ops.ones((1, 5, 8)))
