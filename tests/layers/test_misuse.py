"""What is easily done wrong with a layer, and what it says or does then."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import SIZE, normal
from tf_sparse_attention.layers import (
    BlockSelectedAttention,
    ClusteredAttention,
    DenseAttention,
    FeedForward,
    LocalAttention,
    MixedAttention,
    NativeSparseAttention,
    RoutingAttention,
    SwappedAttention,
    TransformerBlock,
)

X = normal(2, 6, SIZE)


def local(**own):
    return LocalAttention(2, 4, **own)


def built(layer):
    layer.build(X.shape)
    return layer


def routing(**own):
    return RoutingAttention(2, 4, num_clusters=3, cluster_size=4, **own)


@pytest.mark.parametrize("name", ["attention_mask", "query_mask", "key_mask"])
def test_an_additive_mask_is_refused(name):
    sizes = (6, 6) if name == "attention_mask" else (2, 6)
    message = rf"`{name}` must be boolean, .* by `mask != 0`, .* by `mask == 0`\. Received: {name} of dtype float32\."
    with pytest.raises(ValueError, match=message):
        local()(X, **{name: np.zeros(sizes, "float32")})


@pytest.mark.parametrize("make", [local, lambda: MixedAttention([local()]), lambda: SwappedAttention(local())])
@pytest.mark.parametrize("built", [False, True])
def test_a_call_without_a_query_names_it(make, built):
    layer = make()
    if built:
        layer.build(X.shape)
    with pytest.raises(TypeError, match="'query'"):
        layer()
    for given in ({"query": None}, {"query": None, "value": X}):
        with pytest.raises(ValueError, match=r"`query` must be a tensor .* Received: query=None\."):
            layer(**given)


def test_a_picture_without_a_query_names_it():
    with pytest.raises(ValueError, match=r"`query` must be a tensor .* Received: query=None\."):
        local().attention_pattern(None)


@pytest.mark.parametrize("make", [local, lambda: MixedAttention([local(), routing(selection="nearest")])])
def test_masks_may_be_lists(make):
    layer, lower = make(), np.tril(np.ones((6, 6), bool))
    lists = layer(X, attention_mask=lower.tolist(), query_mask=[[True] * 5 + [False]] * 2, segment_ids=[[1] * 6] * 2)
    arrays = layer(X, attention_mask=lower, query_mask=np.arange(6)[None].repeat(2, 0) < 5)
    np.testing.assert_allclose(lists, arrays, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "call", "message"),
    [
        (lambda: BlockSelectedAttention(2, 4), {}, "`use_causal_mask` must be True with BlockSelectedAttention"),
        (lambda: NativeSparseAttention(2, 4), {}, "`use_causal_mask` must be True with NativeSparseAttention"),
        (lambda: MixedAttention([local(), BlockSelectedAttention(2, 4)]), {}, "`use_causal_mask` must be True"),
        (lambda: ClusteredAttention(2, 4), {"use_causal_mask": True}, "`use_causal_mask` must be False with Cl"),
        (routing, {"value": keras.Input((6, SIZE))}, "`value` and `key` must be None"),
    ],
)
def test_a_model_that_cannot_be_called_is_refused_when_it_is_put_together(make, call, message):
    with pytest.raises(ValueError, match=message):
        make()(keras.Input((6, SIZE)), **call)


def test_another_number_of_features_is_refused():
    layer = local()
    layer(X)
    with pytest.raises(ValueError, match=rf"`query` must have {SIZE} features, as .* was built. Received: .*4\)"):
        layer(X[..., :4])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: local(use_bias="x"), "use_bias"),
        (lambda: local(use_output_bias=1), "use_output_bias"),
        (lambda: routing(share_qk="False"), "share_qk"),
        (lambda: routing(mask_self=3), "mask_self"),
        (lambda: routing(reproduce_reference=None), "reproduce_reference"),
        (lambda: TransformerBlock(local(), causal="yes"), "causal"),
        (lambda: TransformerBlock(local(), remat=1), "remat"),
    ],
)
def test_a_switch_is_true_or_false(make, name):
    with pytest.raises(ValueError, match=rf"`{name}` must be True or False\. Received: {name}="):
        make()


def test_integers_of_numpy_count_as_integers():
    assert local(max_distance=np.int64(3), position="relative").get_config()["max_distance"] == 3


def test_what_follows_the_sizes_has_to_be_named():
    with pytest.raises(TypeError, match="positional"):
        LocalAttention(2, 4, 16)


def test_a_call_takes_its_arguments_by_place_as_keras_does():
    layer, mask = local(), np.arange(6)[None].repeat(2, 0) < 4
    np.testing.assert_array_equal(layer(X, X, X, mask), layer(X, value=X, key=X, query_mask=mask))


RAGGED = {
    "attention": lambda x: local()(x),
    "value": lambda x: DenseAttention(2, 4)(X, x),
    "key": lambda x: DenseAttention(2, 4)(X, X, x),
    "mask": lambda x: local()(X, query_mask=x[..., 0] > 0),
    "attention_mask": lambda x: local()(X, attention_mask=x > 0),
    "segment_ids": lambda x: local()(X, segment_ids=tf.cast(x[..., 0], "int32")),
    "symbolic": lambda x: local()(keras.Input((None, SIZE), ragged=True)),
    "picture": lambda x: local().attention_pattern(x),
    "mixed": lambda x: MixedAttention([local()])(x),
    "prefill": lambda x: built(local()).prefill(x, built(local()).init_cache(2, 8)),
    "block": lambda x: TransformerBlock(local())(x),
    "feed_forward": lambda x: FeedForward(8)(x),
}


@pytest.mark.parametrize("name", RAGGED)
def test_a_ragged_input_names_the_way_to_a_dense_one(name):
    x = tf.RaggedTensor.from_row_lengths(tf.ones((7, SIZE)), [3, 4])
    message = (
        r"`\w+` must be a dense tensor\. Pass `\w+\.to_tensor\(\)` together with a padding mask, `tf\.sequence_mask"
    )
    with pytest.raises(ValueError, match=message):
        RAGGED[name](x)


def test_parts_that_cannot_be_one_attention_are_refused():
    built = local()
    built(X)
    with pytest.raises(ValueError, match=r"`parts` must be a list of attention layers of this library"):
        MixedAttention(local())
    with pytest.raises(ValueError, match=r"`parts` after the first must have no output bias: .*, built with an output"):
        MixedAttention([local(), built])
    with pytest.raises(ValueError, match=r"`parts` must have outputs of the same shape\. Received: .*8\).*1\)"):
        MixedAttention([local(), local(output_shape=1)])(X)


def test_a_sublayer_that_changes_the_size_is_refused():
    with pytest.raises(ValueError, match=r"must return the shape of their inputs\. Received: .* to .*5\)"):
        TransformerBlock(local(output_shape=5))(X)


def test_a_mask_of_rank_2_that_might_mean_padding_warns():
    layer, x = LocalAttention(2, 4, window=3), np.ones((5, 5, 8), "float32")
    with pytest.warns(UserWarning, match=r"`attention_mask` of rank 2 .*\(T, S\).* as `query_mask` or `key_mask`"):
        layer(x, attention_mask=np.ones((5, 5), bool))
    layer(x, attention_mask=np.ones((1, 5, 5), bool))
    layer(x[:4], attention_mask=np.ones((5, 5), bool))
