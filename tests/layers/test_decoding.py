"""Decoding with a cache gives what one causal call for the whole sequence gives, and says where there is none."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tests.cases import CASES
from tests.contracts import normal, with_random_weights
from tests.draws import JAX_SETTINGS, ON_JAX, first
from tests.layers.decoded import KINDS, SIZE, compare_drawn, compare_remembered, largest_error
from tests.programs import as_program
from tf_sparse_attention import layers
from tf_sparse_attention.models import Backbone
from tf_sparse_attention.patterns import Dilated, First, Nearest, Stride, Successors, Window

TOLERANCE = 2e-5  # of values up to 5; seen: 4e-6
# These are decoded below by default, and drawn ones in full.
IN_FULL = ("selected", "native", "mixed", "local_2d", "strided")
DRAWN = [pytest.param(x, marks=pytest.mark.full) if x in IN_FULL else x for x in [*KINDS, "mixed"]]
HOW_MANY = [2, pytest.param(30, marks=pytest.mark.full), pytest.param(200, marks=pytest.mark.large)]
JAX = """
import json
from tests.layers.decoded import compare_drawn
print(json.dumps(compare_drawn({kind!r}, {wanted})))
"""


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("wanted", HOW_MANY)
def test_drawn_layers_decode_as_they_are_trained(kind, wanted):
    _, error = compare_drawn(kind, wanted)
    assert error < TOLERANCE


@pytest.mark.large
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_drawn_layers_decode_on_jax(kind, run_python):
    _, error = json.loads(run_python(JAX.format(kind=kind, wanted=ON_JAX), **JAX_SETTINGS))
    assert error < TOLERANCE


# One of each class and each cache policy; the first ones are compiled by default.
NAMES = ["local_window_relative", "all", "strided_merged", "nearest", "lsh", "local_2d", "fixed", "nearest_separate"]
NAMES += ["local_blocks", "local_2d_blocks", "sparse_sinks", "sparse_routed", "sparse_heads", "sparse_two_groupings"]
SELECTED = ["selected_convolved", "selected", "selected_beside"]
NATIVE = ["native_grouped", "native", "native_relative"]


def made(name):
    layer = CASES[name].make()
    layer.build((None, None, SIZE))
    return with_random_weights(layer, 0)


@pytest.mark.parametrize("name", [*first(NAMES, 9), *first(SELECTED, 1), *first(NATIVE, 1)])
def test_prompts_around_a_block_and_of_several_windows(name):
    x = np.random.default_rng(0).normal(size=(6, 31, SIZE)).astype("float32")
    assert largest_error(made(name), x, np.array([0, 1, 3, 4, 5, 24])) < TOLERANCE


# With a table of ranks, with none, and with one of tokens.
@pytest.mark.parametrize("name", ["successors", "successors_window", "successors_token_distance"])
def test_values_of_successors_go_on_after_prompts_of_no_one_and_some_tokens(name):
    assert largest_error(made(name), normal(3, 6, SIZE), np.array([0, 1, 4])) < TOLERANCE


@pytest.mark.parametrize("pattern", [Successors(Window(4)), Window(2) | Successors(Window(4))], ids=["alone", "union"])
def test_a_table_of_distances_with_successor_values(pattern):
    layer = layers.SparseAttention(2, 4, pattern, position="relative")
    layer.build((None, None, SIZE))
    assert largest_error(layer, normal(3, 9, SIZE), np.array([0, 1, 5])) < TOLERANCE


@pytest.mark.parametrize("name", first(NAMES[2:] + NAMES[:2], 2))
def test_one_index_serves_all_rows_and_a_program_decodes_as_eager_steps_do(name):
    import tensorflow as tf

    layer = made(name)
    x = np.random.default_rng(0).normal(size=(2, 9, SIZE)).astype("float32")
    whole = ops.convert_to_numpy(layer(x, use_causal_mask=True))

    @tf.function(jit_compile=True)
    def decode(x):
        def step(index, cache, outputs):
            found, cache = layer.decode(ops.slice(x, (0, index, 0), (2, 1, SIZE)), cache, index)
            return index + 1, cache, ops.slice_update(outputs, (0, index, 0), found)

        start = ops.zeros((), "int32"), layer.init_cache(2, 9), ops.zeros((2, 9, SIZE))
        return ops.while_loop(lambda index, *_: index < 9, step, start)[2]

    np.testing.assert_allclose(decode(tf.constant(x)), whole, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_caches_are_no_longer_than_what_can_be_seen_and_keep_their_shapes(name):
    layer = made(name)
    cache = layer.init_cache(2, 75)
    shapes = [tuple(leaf.shape) for leaf in keras.tree.flatten(cache)]
    if not name.startswith(("strided", "fixed", "lsh", "sparse_heads")):  # which see something of every block or bucket
        longest = 40 if name.startswith("local_2d") else 15  # rows of blocks, of 5 pixels a row
        assert max(shape[2] for shape in shapes if len(shape) == 4) <= longest
    small = [tuple(leaf.shape) for leaf in keras.tree.flatten(layer.init_cache(2, 3))]
    assert all(shape[2] <= 12 for shape in small if len(shape) == 4)
    assert {keras.backend.standardize_dtype(leaf.dtype) for leaf in keras.tree.flatten(cache)} <= {"float32", "int32"}
    _, after = layer.prefill(np.ones((2, 7, SIZE), "float32"), cache)
    _, after = layer.decode(np.ones((2, 1, SIZE), "float32"), after, 7)
    assert [tuple(leaf.shape) for leaf in keras.tree.flatten(after)] == shapes


@pytest.mark.parametrize("name", ["local_window_relative", "all", "nearest"])
def test_a_row_decodes_alone_as_beside_another(name):
    layer = made(name)
    x = np.random.default_rng(3).normal(size=(2, 1, SIZE)).astype("float32")
    together, _ = layer.decode(x, layer.init_cache(2, 4), 0)
    for row in range(2):
        alone, _ = layer.decode(x[row : row + 1], layer.init_cache(1, 4), 0)
        np.testing.assert_allclose(alone[0], together[row], atol=TOLERANCE)


def test_caches_are_in_the_compute_dtype():
    layer = layers.LocalAttention(2, 4, window=6, dtype="mixed_bfloat16")
    layer.build((None, None, SIZE))
    cache = layer.init_cache(2, 9)
    output, cache = layer.decode(np.ones((2, 1, SIZE), "float32"), cache, 0)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    dtypes = {name: keras.backend.standardize_dtype(x.dtype) for name, x in cache["part_0"].items()}
    assert dtypes == {"key": "bfloat16", "value": "bfloat16", "position": "int32"}


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (layers.RoutingAttention(2, 4, 3, 5, selection="top_k"), "selection='top_k' clusters depend on later tokens"),
        (layers.LSHAttention(2, 4, num_buckets=4, bucket_size=5, selection="chunks"), "the members of a chunk depend"),
        (layers.ClusteredAttention(2, 4, num_clusters=3), "ClusteredAttention cannot mask later positions"),
        (layers.LocalAttention(2, 4, key_block_size=3), "LocalAttention cannot mask later positions"),
        (layers.GlobalLocalAttention(2, 4), "GlobalLocalAttention cannot mask later positions"),
    ],
)
def test_layers_without_a_cache_say_why(layer, reason):
    for attention in (layer, layers.MixedAttention([layers.LocalAttention(2, 4), layer])):
        assert reason in attention.cache_unsupported_reason
        with pytest.raises(ValueError, match="must be one that decodes with a cache"):
            attention.init_cache(2, 9)


@pytest.mark.parametrize("wanted", HOW_MANY)
def test_drawn_layers_go_on_from_a_memory(wanted):
    _, error = compare_remembered(wanted)
    assert error < TOLERANCE


@pytest.mark.large
def test_drawn_layers_go_on_from_a_memory_on_jax(run_python):
    code = f"import json; from tests.layers.decoded import compare_remembered as run; print(json.dumps(run({ON_JAX})))"
    _, error = json.loads(run_python(code, **JAX_SETTINGS))
    assert error < TOLERANCE


@pytest.mark.parametrize("norm", first(["pre", "post"], 1))
def test_a_block_goes_on_from_its_inputs_in_a_program(norm):
    import tensorflow as tf

    block = layers.TransformerBlock(layers.LocalAttention(2, 4, window=6, position="rotary"), norm=norm, causal=True)
    x = np.random.default_rng(0).normal(size=(2, 13, SIZE)).astype("float32")
    memory, x = x[:, :8], x[:, 8:]
    whole = block(x, memory=memory)

    @tf.function(jit_compile=True)
    def decode(memory, x):
        cache, outputs = block.init_cache(2, 5, memory), []
        given, cache = block.prefill(x[:, :3], cache)
        for index in range(3, 5):
            found, cache = block.decode(x[:, index : index + 1], cache, index)
            outputs.append(found)
        return ops.concatenate([given, *outputs], axis=1)

    np.testing.assert_allclose(decode(tf.constant(memory), tf.constant(x)), whole, atol=TOLERANCE)


def test_a_memory_adds_to_a_cache_no_more_than_a_mask_of_what_is_seen():
    layer = made("local_window")
    cache = layer.init_cache(2, 100, np.ones((2, 4, SIZE), "float32"), [[False, True, True, True]] * 2)
    assert {name: tuple(x.shape) for name, x in cache["part_0"].items()} == {
        "key": (2, 2, 5, 4),
        "value": (2, 2, 5, 4),
        "position": (2, 1, 5),
        "remembered": (2, 5),
    }
    np.testing.assert_array_equal(cache["part_0"]["remembered"], [[False] * 2 + [True] * 3] * 2)
    assert set(layer.init_cache(2, 100)["part_0"]) == {"key", "value", "position"}


def test_a_memory_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`memory` must be None unless the pattern of the layer has `takes_memory`"):
        made("strided").init_cache(2, 9, np.ones((2, 4, SIZE), "float32"))
    with pytest.raises(ValueError, match="`memory` must"):
        made("local_window").init_cache(2, 9, np.ones((3, 4, SIZE), "float32"))
    with pytest.raises(ValueError, match="`memory_mask` must"):
        made("local_window").init_cache(2, 9, np.ones((2, 4, SIZE), "float32"), np.ones((2, 5), "bool"))


@pytest.mark.parametrize("name", ["prefill", "decode", "decode_cross"])
def test_layers_without_a_cache_say_so_where_one_is_used(name):
    layer = layers.ClusteredAttention(2, 4, num_clusters=3)
    layer.build((None, None, SIZE))
    arguments = (np.ones((2, 1, SIZE), "float32"), {}) + (() if name == "prefill" else (0,))
    with pytest.raises(ValueError, match="must be one that decodes with a c"):
        getattr(layer, name)(*arguments)


def test_clustered_attention_has_no_pattern():
    clustered = layers.ClusteredAttention(2, 4)
    assert clustered.pattern is None and layers.MixedAttention([layers.LocalAttention(2, 4), clustered]).pattern is None


def test_a_block_of_both_sides_has_no_cache():
    block = layers.TransformerBlock(layers.LocalAttention(2, 4))
    with pytest.raises(ValueError, match="must be one that decodes with a cache: it attends to later positions"):
        block.init_cache(2, 9)


def test_wrong_arguments_are_refused():
    layer = layers.LocalAttention(2, 4)
    with pytest.raises(ValueError, match="must be built before it decodes"):
        layer.init_cache(2, 9)
    layer.build((None, None, SIZE))
    with pytest.raises(ValueError, match="`max_length` must be"):
        layer.init_cache(2, 0)


OVERRUN = [
    lambda: layers.StridedAttention(2, 4, stride=3),
    lambda: layers.FixedAttention(2, 4, block_size=4, num_summary=1),
    lambda: layers.MixedAttention([layers.RoutingAttention(2, 4, 3, 30, seed=0)]),
    lambda: layers.SparseAttention(2, 4, Window(2) | Dilated(9, 3)),
    lambda: layers.SparseAttention(2, 4, Window(30) | Stride(5) | Nearest(3, 2), seed=0),
]


@pytest.mark.parametrize("make", OVERRUN)
def test_positions_that_a_cache_has_no_slots_for_are_refused(make):
    layer, x = make(), np.ones((2, 13, SIZE), "float32")
    layer.build(x.shape)
    cache = layer.init_cache(2, 12)
    with pytest.raises(
        ValueError, match=r"`x` must be less than the `max_length` of the cache.*Received: 13 positions"
    ):
        layer.prefill(x, cache)
    _, cache = layer.prefill(x[:, :11], cache)
    _, cache = layer.decode(x[:, :1], cache, np.array([11, 11]))
    with pytest.raises(ValueError, match=r"`index` must be less than the `max_length`.*Received: 13 positions"):
        layer.decode(x[:, :1], cache, 12)
    with pytest.raises(ValueError, match=r"`index` must be the number of tokens in the cache, at least 0"):
        layer.decode(x[:, :1], cache, -1)


@pytest.mark.parametrize("make", OVERRUN)
@pytest.mark.parametrize("outside", first([12, -1, 100, 2**31 - 1], 2))
def test_a_tensor_beyond_the_cache_gives_nan_and_touches_no_other_row(make, outside):
    layer, x = make(), np.random.default_rng(0).normal(size=(2, 13, SIZE)).astype("float32")
    layer.build(x.shape)
    with_random_weights(layer, 0)
    _, cache = layer.prefill(x[:, :11], layer.init_cache(2, 12))
    far, after = as_program(layer.decode)(x[:, :1], cache, np.array([outside, 11], "int32"))
    near, expected = layer.decode(x[:, :1], cache, np.array([11, 11]))
    assert np.isnan(far[0]).all()
    np.testing.assert_allclose(far[1], near[1], atol=TOLERANCE)
    # Of two rows that go on, one that has come to an end leaves the other's cache as it is without it.
    for leaf, other in zip(keras.tree.flatten(after), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(leaf[1], other[1], atol=TOLERANCE)
    kept = [leaf[0] for leaf in keras.tree.flatten(after)]
    for leaf, before in zip(kept, keras.tree.flatten(cache), strict=True):
        np.testing.assert_array_equal(leaf, before[0])


def small_model():
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 5}
    return with_random_weights(tsa.models.LanguageModel(tsa.models.Backbone(20, 2, 8, [part])), 0)


# The same contract for a layer, a mixture, a block and a model: name, what decodes, tokens of three rows.
CONTRACT = {
    "layer": lambda: (made("local_window"), normal(3, 6, SIZE)),
    "first_tokens": lambda: (made("sparse_sinks"), normal(3, 6, SIZE)),
    "native": lambda: (made("native"), normal(3, 6, SIZE)),
    "mixed": lambda: (made("mixed"), normal(3, 6, SIZE)),
    "block": lambda: (block_of(made("nearest")), normal(3, 6, SIZE)),
    "model": lambda: (small_model(), np.arange(1, 19).reshape(3, 6)),
}


def block_of(attention):
    block = layers.TransformerBlock(attention, causal=True)
    block.build((None, None, SIZE))
    return block


@pytest.mark.parametrize("name", CONTRACT)
def test_a_cache_with_tokens_takes_no_prompt(name):
    decoder, x = CONTRACT[name]()
    _, cache = decoder.prefill(x[:, :3], decoder.init_cache(3, 9))
    with pytest.raises(ValueError, match=r"`cache` must hold no tokens.*Received: a cache of \[3, 3, 3\] tokens"):
        decoder.prefill(x[:, 3:], cache)


@pytest.mark.parametrize("name", CONTRACT)
@pytest.mark.parametrize("index", [2, 4, np.array([3, 2, 3])])
@pytest.mark.parametrize("convert", [np.asarray, ops.convert_to_tensor])
def test_an_index_that_is_not_the_number_of_tokens_is_refused(name, index, convert):
    decoder, x = CONTRACT[name]()
    _, cache = decoder.prefill(x[:, :3], decoder.init_cache(3, 9))
    with pytest.raises(ValueError, match=r"`index` must be the number of tokens.*a cache of \[3, 3, 3\] tokens"):
        decoder.decode(x[:, 3:4], cache, convert(index))


@pytest.mark.parametrize("name", CONTRACT)
def test_padding_on_the_left_is_refused(name):
    decoder, x = CONTRACT[name]()
    mask = np.ones((3, 6), bool)
    mask[1, 0] = False
    with pytest.raises(ValueError, match=r"`mask` must have padding on the right.*False before True in rows \[1\]"):
        decoder.prefill(x, decoder.init_cache(3, 9), mask)


@pytest.mark.parametrize("name", CONTRACT)
def test_in_a_program_wrong_rows_are_nan_and_stay_so_after_a_prompt(name):
    decoder, x = CONTRACT[name]()
    prefill, decode = as_program(decoder.prefill), as_program(decoder.decode)
    mask = np.ones((3, 4), bool)
    mask[1, 0] = False
    empty = decoder.init_cache(3, 9)

    def nan_rows(y):
        return np.isnan(ops.convert_to_numpy(y)).any(axis=(1, 2)).tolist()

    y, cache = prefill(x[:, :4], empty, mask)
    assert nan_rows(y) == [False, True, False]
    y, after = decode(x[:, 4:5], cache, np.array([4, 3, 3]))
    assert nan_rows(y) == [False, True, True]
    y, after = decode(x[:, 4:5], after, np.array([5, 3, 4]))  # the last row goes on as if nothing had been asked
    assert nan_rows(y) == [False, True, False]
    whole, _ = decoder.prefill(x[:, :5], empty)
    np.testing.assert_allclose(y[2], whole[2, 4:5], atol=TOLERANCE)
    y, _ = prefill(x[:, :4], cache, np.ones((3, 4), bool))
    assert nan_rows(y) == [True, True, True]


@pytest.mark.parametrize("name", [*NAMES, *SELECTED, *NATIVE, "successors", "successors_window", "successors_separate"])
def test_a_row_without_a_token_keeps_nothing(name):
    layer, x = made(name), normal(2, 8, SIZE)
    decode = as_program(layer.decode)
    _, cache = layer.prefill(x[:, :5], layer.init_cache(2, 8))
    # Neither -1 nor a wrong index in a program, ahead or back, leaves a trace.
    for index in ([-1, -1], [7, 3]):
        y, after = decode(x[:, :1] + 1, cache, np.array(index, "int32"))
        assert np.isnan(y).all()
        for old, new in zip(keras.tree.flatten(cache), keras.tree.flatten(after), strict=True):
            np.testing.assert_array_equal(old, new)


def test_a_model_says_where_its_cache_ends():
    part = {"layer": "StridedAttention", "num_heads": 2, "key_dim": 4, "stride": 3}
    model = tsa.models.LanguageModel(tsa.models.Backbone(20, 1, 8, [part]))
    ids = np.ones((1, 12), "int32")
    _, cache = model.prefill(ids, model.init_cache(1, 12))
    with pytest.raises(ValueError, match=r"`index` must be less than the `max_length`.*Received: 13 positions"):
        model.decode(ids[:, :1], cache, 12)
    assert np.isnan(as_program(model.decode)(ids[:, :1], cache, np.array(12))[0]).all()
    with pytest.raises(ValueError, match=r"`x` must be less than the `max_length`.*Received: 12 positions"):
        model.prefill(ids, model.init_cache(1, 9))


def test_a_cache_ends_where_it_would_write_over_a_memory_with_gaps():
    layer, memory = layers.LocalAttention(2, 4, window=30), np.ones((3, 4, SIZE), "float32")
    layer.build((None, None, SIZE))
    seen = [[True, False, False, False], [False, False, False, True], [False] * 4]
    cache = layer.init_cache(3, 2, memory, seen)
    ends = [2, 5, 6]  # after the slots that hold nothing of the memory, which begins 4, 1 and 0 positions before
    decode = as_program(layer.decode)
    for index in range(7):
        y, cache = decode(memory[:, :1], cache, np.array(index))
        assert [bool(np.isnan(row).any()) for row in ops.convert_to_numpy(y)] == [index >= end for end in ends]
    _, cache = layer.prefill(memory[:, :2], layer.init_cache(3, 2, memory, seen))
    with pytest.raises(ValueError, match=r"`index` must be less than the `max_length`.*Received: 3 positions"):
        layer.decode(memory[:, :1], cache, 2)
    with pytest.raises(ValueError, match=r"`x` must be less than the `max_length`.*Received: 3 positions"):
        layer.prefill(memory[:, :3], layer.init_cache(3, 2, memory, seen))


@pytest.mark.parametrize("pattern", [Window(3), Dilated(2, 2) | First(4), Nearest(2, 3)])
def test_what_keeps_the_last_tokens_decodes_for_ever(pattern):
    layer = layers.SparseAttention(2, 4, pattern, seed=0)
    layer.build((None, None, SIZE))
    x = np.random.default_rng(0).normal(size=(2, 9, SIZE)).astype("float32")
    whole, cache = layer(x, use_causal_mask=True), layer.init_cache(2, 5)
    for i in range(9):
        y, cache = layer.decode(x[:, i : i + 1], cache, i)
        np.testing.assert_allclose(y[:, 0], whole[:, i], atol=TOLERANCE)


def test_a_cache_of_another_layer_is_refused():
    window = layers.LocalAttention(2, 4, window=3)
    mixed = layers.MixedAttention([layers.LocalAttention(1, 4, window=3, name="near")])
    for layer in (window, mixed):
        layer.build((None, None, SIZE))
    x = np.ones((2, 1, SIZE), "float32")
    with pytest.raises(ValueError, match=r"`init_cache`, .* of this .*entries \['near'\], without \['part_0'\]"):
        window.decode(x, mixed.init_cache(2, 5), 0)
    with pytest.raises(ValueError, match=r"result of `init_cache`, .* of this .*'part_0'\], without \['near'\]"):
        mixed.prefill(x, window.init_cache(2, 5))
    block = layers.TransformerBlock(window, causal=True)
    block.build((None, None, SIZE))
    with pytest.raises(ValueError, match=r"result of `init_cache`, .* of this .*'part_0'\], without \['local.*'\]"):
        block.decode(x, window.init_cache(2, 5), 0)
    model = Backbone(5, 1, SIZE, [window])
    with pytest.raises(ValueError, match=r"result of `init_cache`, .* of this .*without \['block_0'\]"):
        model.decode(np.ones((2, 1), int), window.init_cache(2, 5), 0)


def test_a_cache_of_pixels_is_no_longer_than_the_image():
    layer = layers.LocalAttention2D(2, 4, width=3, height=3, block_shape=(2, 2), order="blocks")
    layer.build((None, None, SIZE))
    x = np.random.default_rng(0).normal(size=(2, 9, SIZE)).astype("float32")
    assert largest_error(with_random_weights(layer, 0), x, np.array([0, 6])) < TOLERANCE
    with pytest.raises(ValueError, match="`max_length` must have at most 9 positions"):
        layer.init_cache(2, 10)
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        layer.init_cache(0, 9)
    cache = layer.init_cache(3, 9)
    for call in (lambda x: layer.prefill(x, cache), lambda x: layer.decode(x, cache, 0)):
        with pytest.raises(
            ValueError, match=r"`x` must have the batch size of `cache`\. Received: 1 rows, a cache of 3 rows"
        ):
            call(np.ones((1, 1, SIZE), "float32"))
    with pytest.raises(ValueError, match="`x` must have shape"):
        layer.decode(np.ones((3, 2, SIZE), "float32"), cache, 0)
    for index in (np.zeros(2, "int32"), np.zeros((3, 1), "int32")):
        with pytest.raises(ValueError, match="`index` must be one position for all rows, or one position per row"):
            layer.decode(np.ones((3, 1, SIZE), "float32"), cache, index)
    for index in (1.5, np.array([0.5, 1, 2]), "0", None, True):
        with pytest.raises(ValueError, match="`index` must be an integer, or one integer per row"):
            layer.decode(np.ones((3, 1, SIZE), "float32"), cache, index)
    both = layer.prefill(np.ones((3, 2, SIZE), "float32"), cache)
    with pytest.raises(ValueError, match=r"`cache` must be a dictionary, .*`init_cache`.*Received: a tuple"):
        layer.decode(np.ones((3, 1, SIZE), "float32"), both, 2)
