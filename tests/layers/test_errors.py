"""Wrong arguments of layers and wrong calls raise errors that name the argument."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import SIZE, normal
from tests.draws import is_full
from tf_sparse_attention import layers
from tf_sparse_attention.layers.parts.call_inputs import check_attention_mask
from tf_sparse_attention.models import StatefulModel
from tf_sparse_attention.patterns import Heads, Nearest, Successors, TopKeys, Window


def maker(layer_class, **defaults):
    """Return a function of keyword arguments that makes a layer."""
    return lambda **own: layer_class(**{**defaults, **own})


HEADS = {"num_heads": 2, "key_dim": 4}
GROUPED = {"num_heads": 4, "key_dim": 4}
local = maker(layers.LocalAttention, **HEADS)
grouped = maker(layers.LocalAttention, **GROUPED, window=4)
grouped_alibi = maker(layers.LocalAttention, **GROUPED, window=4, position="alibi")
image = maker(layers.LocalAttention2D, **HEADS, width=6, block_shape=(2, 2))
routing = maker(layers.RoutingAttention, **HEADS, num_clusters=3, cluster_size=4)
lsh = maker(layers.LSHAttention, **HEADS, num_buckets=4, bucket_size=5)
strided = maker(layers.StridedAttention, **HEADS, stride=4)
fixed = maker(layers.FixedAttention, **HEADS, block_size=4, num_summary=1)
global_local = maker(layers.GlobalLocalAttention, **HEADS)
all_attention = maker(layers.AllAttention, **HEADS, num_persistent=3, window=4)
sparse = maker(layers.SparseAttention, **HEADS, pattern=Nearest(3, 4))
selected = maker(layers.BlockSelectedAttention, **HEADS)
native = maker(layers.NativeSparseAttention, **HEADS)
clustered = maker(layers.ClusteredAttention, **HEADS)
dense = maker(layers.DenseAttention, **HEADS)
embedding = maker(layers.AdaptiveEmbedding, vocabulary_size=10, hidden_dim=8, cutoffs=(5,))
softmax = maker(layers.AdaptiveSoftmax, vocabulary_size=10)
feed_forward = maker(layers.FeedForward, intermediate_dim=8)


def block(**own):
    return layers.TransformerBlock(**{"attention": local(), **own})


# Names of arguments that must be positive integers, and of those that must be booleans.
POSITIVE = {
    local: ("num_heads", "key_dim", "value_dim", "block_size", "window"),
    image: ("width", "height"),
    routing: ("num_clusters", "cluster_size"),
    lsh: ("bucket_size", "num_rounds"),
    strided: ("stride",),
    fixed: ("block_size", "num_groups"),
    global_local: ("num_global",),
    all_attention: ("window",),
    selected: ("block_size", "num_blocks", "key_convolution"),
    native: ("block_size", "num_blocks", "window"),
    embedding: ("vocabulary_size",),
}
BOOLEAN = {
    local: ("use_bias", "use_output_bias"),
    grouped: ("use_sink",),
    routing: ("share_qk", "mask_self", "reproduce_reference", "use_successor_values"),
    lsh: ("mask_self",),
    global_local: ("own_projections",),
    all_attention: ("mask_self",),
    sparse: ("normalize_queries_and_keys",),
    block: ("causal", "remat", "reproduce_reference"),
}
# Wrong values of single arguments.
WRONG_VALUES = {
    local: {"max_distance": [-1], "seed": [-1], "dropout": [1, True], "output_shape": [2.5], "num_blocks_before": [-1]}
    | {"position": ["absolute", "rotary_2d"], "flash_attention": [True], "sliding_window": [0]},
    dense: {"attention_axes": [2, -2, (-3, -2)], "flash_attention": [True], "sliding_window": [0]},
    grouped: {"num_key_value_heads": [3], "logit_soft_cap": [0], "attention_scale": [-1.0]}
    | {"query_key_norm_epsilon": [-1e-6]},
    grouped_alibi: {"alibi_slopes": [(0.1, 0.2), (0.1, 0.2, 0.3, 0)]},
    image: {"order": ["rows"], "block_shape": [8, (8, 8, 8)], "num_blocks_before": [1]},
    routing: {"selection": ["best"], "distance": ["true"], "ema_decay": [1.0], "commitment_loss": [-1e-4]}
    | {"revive_after": [-1]},
    lsh: {"num_buckets": [5], "selection": ["chunk"]},
    strided: {"heads": ["both"], "layer_index": [0]},
    fixed: {"num_summary": [5], "heads": ["both"], "layer_index": [0]},
    global_local: {"num_first_global": [-1], "dense_length": [-1], "key_block_size": [4]},
    all_attention: {"num_persistent": [-1], "variant": ["half"]},
    clustered: {"position": ["relative"], "use_sink": [True]},
    layers.FeedForward: {"intermediate_dim": [0]},
    feed_forward: {"activation": ["reglu"], "use_bias": [1], "dropout": [2], "seed": ["1"]},
    block: {"attention": ["local"], "feed_forward": [64], "norm": ["both"], "dropout": [-0.1], "seed": [0.5]}
    | {"epsilon": [0], "cross_attention": [keras.layers.Dense(3), local(window=3, use_successor_values=True)]},
    layers.MixedAttention: {"parts": [[], local(), [local(), keras.layers.MultiHeadAttention(2, 4, name="mha")]]},
    embedding: {"cutoffs": [(5, 5), (10,), 5]},
    softmax: {"cutoffs": [5, None]},
    layers.AdaptiveSoftmax: {"embedding": ["words"]},
    layers.SinusoidalEmbedding: {"max_wavelength": [0]},
    layers.GridEmbedding: {"grid": [(3, 0), 12]},
}
# Function of the arguments, and arguments that do not go together, the first of which the message names.
WRONG_ARGUMENTS = [
    (local, {"key_dim": 5, "position": "rotary"}),
    (local, {"max_distance": 3, "position": "alibi"}),
    (local, {"num_blocks_before": 1, "window": 3}),
    (local, {"key_block_size": 3, "window": 3}),
    (local, {"window": None, "use_successor_values": True}),
    (local, {"window": None, "adaptive_span": True}),
    (local, {"adaptive_span": 3, "window": 8}),
    (local, {"adaptive_span": {"length": 3}, "window": 8}),
    (dense, {"max_distance": None, "position": "relative"}),
    (grouped, {"use_query_key_norm": False, "query_key_norm_epsilon": 1e-5}),
    (grouped, {"position": None, "rotary_max_wavelength": 100.0}),
    (grouped, {"rotary_dim": 6, "position": "rotary"}),
    (grouped, {"alibi_slopes": (0.1, 0.2, 0.3, 0.4), "position": "rotary"}),
    (grouped, {"rotary_type": "linear", "rotary_factors": (1.0, 2.0), "position": "rotary"}),
    (grouped, {"rotary_factors": None, "rotary_type": "longrope", "position": "rotary"}),
    (grouped, {"rotary_factors": (1.0,), "rotary_type": "longrope", "position": "rotary"}),
    (grouped, {"rotary_type": "other", "position": "rotary"}),
    (grouped, {"rotary_type": "default", "rotary_beta_fast": 8.0, "position": "rotary"}),
    (grouped, {"rotary_type": "yarn", "rotary_high_freq_factor": 8.0, "position": "rotary"}),
    (grouped, {"rotary_low_freq_factor": 4.0, "position": "rotary"}),
    (image, {"key_dim": 6, "position": "rotary_2d"}),
    (routing, {"num_clusters": 1, "selection": "hash"}),
    (routing, {"num_clusters": 6, "selection": "hash"}),
    (routing, {"selection": "top_k", "use_successor_values": True}),
    (routing, {"distance": "token", "position": "rotary"}),
    (routing, {"share_qk": True, "selection": "top_keys"}),
    (routing, {"mask_self": True, "selection": "top_keys", "share_qk": False}),
    (routing, {"mask_self": False, "use_successor_values": True}),
    (routing, {"reproduce_reference": True, "selection": "top_keys", "share_qk": False}),
    (routing, {"use_sink": True, "selection": "top_k"}),
    (lsh, {"selection": "chunks", "use_successor_values": True}),
    (fixed, {"num_summary": 3, "num_heads": 4, "num_groups": 2}),
    (fixed, {"num_groups": 2, "num_heads": 6}),
    (fixed, {"num_groups": 2, "num_heads": 3, "heads": "merged"}),
    *((make, {"heads": "split", "num_heads": 1}) for make in (strided, fixed)),
    *((make, {"layer_index": -1, "heads": "interleaved"}) for make in (strided, fixed)),
    *((make, {"layer_index": None, "heads": "interleaved"}) for make in (strided, fixed)),
    (global_local, {"num_first_global": 3, "num_global": 2}),
    (global_local, {"dense_length": 4, "own_projections": True}),
    (all_attention, {"num_persistent": 0, "variant": "split"}),
    (all_attention, {"num_heads": 1, "variant": "head_split"}),
    (all_attention, {"use_sink": True, "variant": "split"}),
    (all_attention, {"num_key_value_heads": 2, "num_heads": 6, "variant": "head_split"}),
    (sparse, {"num_key_value_heads": 2, "num_heads": 4, "pattern": Heads([(1, Window(2)), (3, Window(3))])}),
    (block, {"causal": True, "attention": clustered()}),
    (block, {"causal": True, "attention": layers.MixedAttention([clustered()])}),
    (block, {"causal": True, "attention": routing(selection="top_keys", share_qk=False)}),
    (block, {"causal": False, "attention": local(window=3, use_successor_values=True)}),
    (block, {"causal": False, "attention": layers.MixedAttention([local(window=3, use_successor_values=True)])}),
    (block, {"cross_attention": clustered(), "causal": True}),
    (block, {"cross_attention": routing(selection="top_k", share_qk=False), "causal": True}),
    (embedding, {"div_value": 4, "cutoffs": (2, 5)}),
    (layers.AdaptiveSoftmax, {"vocabulary_size": 10, "embedding": embedding()}),
]


def test_a_wrong_argument_is_named(subtests):
    positive = {make: dict.fromkeys(names, (0, 1.5)) for make, names in POSITIVE.items()}
    boolean = {make: dict.fromkeys(names, ("yes",)) for make, names in BOOLEAN.items()}
    single = [
        (make, {name: wrong})
        for table in (positive, boolean, WRONG_VALUES)
        for make, wrongs in table.items()
        for name, values in wrongs.items()
        for wrong in values
    ]
    for make, arguments in [*WRONG_ARGUMENTS, *single]:
        name = next(iter(arguments))
        with subtests.test(str(arguments)), pytest.raises(ValueError, match=f"^`{name}`"):
            make(**arguments)


def test_a_wrong_setting_of_a_span_is_named():
    for name, value in (("ramp", 0), ("initial", 1.5), ("loss", -1)):
        with pytest.raises(ValueError, match=rf"^`adaptive_span\['{name}'\]`"):
            local(window=8, adaptive_span={name: value})


def test_a_misspelled_argument_suggests_the_right_one(subtests):
    for make, wrong, right in [
        (local, "windw", "window"),
        (local, "num_kv_heads", "num_key_value_heads"),
        (local, "soft_cap", "logit_soft_cap"),
        (local, "qk_norm", "use_query_key_norm"),
        (maker(layers.MixedAttention, parts=[local()]), "part", "parts"),
        (block, "causl", "causal"),
        (maker(layers.SwappedAttention, attention=local()), "causl", "causal"),
        (maker(layers.SoftmaxFeedForward, num_persistent=8), "drpout", "dropout"),
        (embedding, "div_valu", "div_value"),
        (maker(layers.GridEmbedding, grid=(2, 3)), "sed", "seed"),
        (maker(StatefulModel, model=None, batch_size=2), "batch_siz", "batch_size"),
    ]:
        with subtests.test(wrong), pytest.raises(ValueError, match=f"Did you mean `{right}`"):
            make(**{wrong: 3})
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        local(colour="red")  # unlike any argument: left to Keras


X, SHORT = normal(2, 6, SIZE), normal(2, 4, SIZE)
MASK = np.ones((2, 6), bool)
PAIRS = np.ones((2, 3, 6, 6), bool)


def mixed(**own):
    return layers.MixedAttention([local(**own), local()])


CAUSAL = {"use_causal_mask": True}
OTHER_FEATURES = {"query": X[..., :4]}
# Function that makes the layer, inputs of a call, and the argument that the message names first.
WRONG_CALLS = [
    (local, {"query": X[:, :0]}, "query"),
    (local, {"query": X[0]}, "query"),
    (local, {"query": None}, "query"),
    (lambda: layers.SwappedAttention(local()), {"query": None}, "query"),
    (mixed, {"query": None}, "query"),
    (local, {"query": keras.Input((6, None))}, "query"),
    (local, OTHER_FEATURES, "query"),
    (local, {"query": X, "value": X[0]}, "value"),
    (local, {"query": X, "value": X, "key": X[0]}, "key"),
    (local, {"query": X, "value": SHORT, "key": X}, "key"),
    (local, {"query": X, "value": SHORT[:1]}, "query"),
    (local, {"query": X, "key": X}, "value"),
    (routing, {"query": X, "value": SHORT}, "value"),
    (lambda: routing(share_qk=False, selection="nearest"), {"query": X, "value": SHORT}, "selection"),
    (lambda: lsh(share_qk=False), {"query": X, "value": SHORT}, "value"),
    (global_local, {"query": X, "value": SHORT}, "value"),
    (local, {"query": X, "query_mask": MASK[:, :5]}, "query_mask"),
    (local, {"query": X, "value_mask": np.ones((3, 6), bool)}, "value_mask"),
    (local, {"query": X, "value": SHORT, "key_mask": MASK}, "key_mask"),
    (local, {"query": X, "query_mask": np.zeros((2, 6), "float32")}, "query_mask"),
    (local, {"query": X, "attention_mask": np.zeros((6, 6), "float32")}, "attention_mask"),
    (local, {"query": X, "attention_mask": MASK[0]}, "attention_mask"),
    (local, {"query": X, "attention_mask": MASK}, "attention_mask"),
    (local, {"query": X, "attention_mask": PAIRS}, "attention_mask"),
    (clustered, {"query": X, "attention_mask": PAIRS[:, 0]}, "attention_mask"),
    (global_local, {"query": X, "global_mask": MASK[:, :5]}, "global_mask"),
    (mixed, {"query": X, "global_mask": MASK}, "global_mask"),
    (block, {"inputs": X, "global_mask": MASK}, "global_mask"),
    (local, {"query": X, "segment_ids": np.zeros((1, 6), "int32")}, "segment_ids"),
    (clustered, {"query": X, "segment_ids": np.zeros((2, 6), "int32")}, "segment_ids"),
    (local, {"query": X, "value": SHORT, "segment_ids": np.zeros((2, 6), "int32")}, "value_segment_ids"),
    (local, {"query": X, "padding_mask": MASK}, "padding_mask"),
    (clustered, {"query": X, **CAUSAL}, "use_causal_mask"),
    (lambda: local(block_size=2, key_block_size=3), {"query": X, **CAUSAL}, "use_causal_mask"),
    (lambda: routing(selection="top_keys", share_qk=False), {"query": X, **CAUSAL}, "use_causal_mask"),
    (selected, {"query": X}, "use_causal_mask"),
    (lambda: layers.MixedAttention([local(), selected()]), {"query": X}, "use_causal_mask"),
    (lambda: sparse(pattern=Successors(Window(3))), {"query": X}, "use_causal_mask"),
    (lambda: routing(use_successor_values=True), {"query": X}, "use_causal_mask"),
    (selected, {"query": X, "value": X + 1, **CAUSAL}, "value"),
    (lambda: sparse(pattern=Successors(Window(3))), {"query": X, "value": X + 1, **CAUSAL}, "value"),
    (lambda: native(block_size=2), {"query": X, "memory": X, **CAUSAL}, "memory"),
    (lambda: image(height=3), {"query": normal(1, 19, SIZE)}, "query"),
    (lambda: image(height=3, order="blocks"), {"query": X[:1], "value": normal(1, 20, SIZE)}, "value"),
    (lambda: routing(selection="top_keys", share_qk=False), {"query": X, "segment_ids": MASK + 0}, "segment_ids"),
    (lambda: sparse(pattern=Window(2) | TopKeys(3, 4)), {"query": X, "segment_ids": MASK + 0}, "segment_ids"),
]


def test_the_argument_of_a_wrong_call_is_named_in_the_first_call_and_later(subtests):
    built = {}
    for make, inputs, name in WRONG_CALLS:
        if make not in built:
            built[make] = make()
            built[make].build(X.shape)
        # The first call defines the number of features.
        is_first_tested = inputs is not OTHER_FEATURES and (is_full() or make in (mixed, block, routing))
        for layer in (make(), built[make]) if is_first_tested else (built[make],):
            with subtests.test(name, layer=layer.name), pytest.raises(ValueError, match=f"`{name}`"):
                layer(**inputs)


def test_the_argument_of_a_wrong_call_of_attention_pattern_is_named(subtests):
    for make, inputs, name in [
        (local, {"query": None}, "query"),
        (local, {"query": X, "padding_mask": MASK}, "masks"),
        (global_local, {"query": X, "marks": MASK}, "masks"),
        (mixed, {"query": X, "global_mask": MASK}, "global_mask"),
        (lambda: routing(selection="top_keys", share_qk=False), {"query": X, **CAUSAL}, "use_causal_mask"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            make().attention_pattern(**inputs)


def test_a_misspelled_call_argument_suggests_the_right_one(subtests):
    for make, wrong, hint in [
        (local, "causal", "`use_causal_mask=True`"),
        (block, "use_causal_mask", "`causal=True`"),
        (local, "padding_mask", "`query_mask` or `key_mask`"),
        (local, "use_casual_mask", "Did you mean `use_causal_mask`"),
        (mixed, "key_msk", "Did you mean `key_mask`"),
        (block, "encoder_sequnce", "Did you mean `encoder_sequence`"),
    ]:
        with subtests.test(wrong), pytest.raises(ValueError, match=f"`{wrong}` must not be set .*{hint}"):
            make()(X, **{wrong: MASK})


def test_ragged_inputs_are_refused_with_a_way_to_dense_ones(subtests):
    x = tf.RaggedTensor.from_row_lengths(tf.ones((7, SIZE)), [3, 4])
    layer = local()
    layer.build(X.shape)
    for name, call in {
        "query": layer,
        "value": lambda x: dense()(X, x),
        "key": lambda x: dense()(X, X, x),
        "query_mask": lambda x: layer(X, query_mask=x[..., 0] > 0),
        "attention_mask": lambda x: layer(X, attention_mask=x > 0),
        "segment_ids": lambda x: layer(X, segment_ids=tf.cast(x[..., 0], "int32")),
        "symbolic query": lambda x: layer(keras.Input((None, SIZE), ragged=True)),
        "attention_pattern": layer.attention_pattern,
        "mixed": mixed(),
        "prefill": lambda x: layer.extend(x, layer.init_cache(2, 8)),
        "block": block(),
        "feed-forward": layers.FeedForward(8),
    }.items():
        with subtests.test(name), pytest.raises(ValueError, match=r"`\w+` must be a dense tensor.*to_tensor\(\)"):
            call(x)


def test_calls_accept_lists_of_numbers_and_numpy_integers():
    layer, given = local(window=3), {"query_mask": np.arange(6)[None].repeat(2, 0) < 5, "segment_ids": MASK + 0}
    lists = {name: mask.tolist() for name, mask in given.items()}
    np.testing.assert_allclose(layer(X, **lists), layer(X, **given), atol=1e-6)
    assert local(max_distance=np.int64(3), position="relative").get_config()["max_distance"] == 3


def test_call_arguments_are_positional_and_constructor_arguments_after_the_sizes_are_not():
    layer, mask = local(), np.arange(6)[None].repeat(2, 0) < 4
    np.testing.assert_array_equal(layer(X, X, X, mask), layer(X, value=X, key=X, query_mask=mask))
    with pytest.raises(TypeError, match="positional"):
        layers.LocalAttention(2, 4, 16)


def test_a_square_attention_mask_of_rank_2_that_could_mean_padding_warns():
    layer, x = local(window=3), np.ones((5, 5, 8), "float32")
    with pytest.warns(UserWarning, match=r"`attention_mask` of rank 2 .*`query_mask` or `key_mask`"):
        layer(x, attention_mask=np.ones((5, 5), bool))
    layer(x, attention_mask=np.ones((1, 5, 5), bool))
    layer(x[:4], attention_mask=np.ones((5, 5), bool))


def test_an_attention_mask_with_more_entries_than_an_index_can_hold_is_refused():
    with pytest.raises(ValueError, match=r"^`attention_mask` must have fewer than"):
        check_attention_mask(keras.KerasTensor((65536, 65536), dtype="bool"), 1, 8, 65536, 65536)


def test_other_wrong_uses_are_named(subtests):
    built = local()
    built.build(X.shape)

    class Unfinished(layers.AttentionLayer):
        pass

    uses = [
        (lambda: layers.MixedAttention([local(), built]), ValueError, "parts"),  # with two output biases
        (lambda: mixed(output_shape=1)(X), ValueError, "parts"),
        (lambda: block(attention=local(output_shape=5))(X), ValueError, "shape of their"),
        (lambda: routing().start_from_data(X[:1, :2]), ValueError, "`x`"),
        (lambda: routing().start_from_data(X[:1], MASK[:1] & False), ValueError, "`mask`"),
        (lambda: routing(selection="random").start_from_data(X), ValueError, "`selection`"),
        (lambda: Unfinished(2, 4).pattern, NotImplementedError, "`pattern`"),
        (lambda: Unfinished(2, 4)(X), NotImplementedError, "`pattern`"),
        (lambda: layers.AdaptiveSoftmax(embedding=embedding())(normal(2, 4)), ValueError, "`inputs`"),
        (lambda: softmax(cutoffs=(2, 5), div_value=4)(normal(2, 4)), ValueError, "`div_value`"),
        (lambda: softmax(cutoffs=(5,)).loss(np.ones((2, 3, 8)), np.ones((2, 4), int)), ValueError, "`words`"),
        (lambda: layers.GridEmbedding((3, 4))(normal(2, 13, 4)), ValueError, "`inputs`"),
        (lambda: layers.SoftmaxFeedForward(5, num_heads=3).build(X.shape), ValueError, "`num_heads`"),
    ]
    for number, (use, error, message) in enumerate(uses):
        with subtests.test(number), pytest.raises(error, match=message):
            use()
    for make in (routing, lsh, sparse):
        with subtests.test("shared keys in groups"), pytest.raises(ValueError, match="Pass share_qk=False to"):
            make(num_heads=4, num_key_value_heads=2, share_qk=True)
