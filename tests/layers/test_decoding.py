"""Decoding with a cache equals one causal call for the whole sequence, and layers without a cache give the reason."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tests.cases import CASES
from tests.contracts import normal, with_random_weights
from tests.draws import MANY, first
from tests.layers import decoded
from tests.layers.decoded import SIZE, built, by_index, largest_error
from tests.programs import as_program
from tf_sparse_attention import layers
from tf_sparse_attention.layers.attention.attention_checks import num_cached_tokens
from tf_sparse_attention.models import Backbone
from tf_sparse_attention.patterns import Dilated, First, Nearest, RetrievedClusters, SelectedBlocks, Stride, Window

TOLERANCE = 2e-5  # of values up to 5; seen: 4e-6
KINDS = [("compare_drawn", kind) for kind in [*decoded.KINDS, "mixed"]]
KINDS += [("compare_crossing", kind) for kind in [*decoded.CROSSING, "mixed"]]
# Other kinds decode below, in tables of named layers.
BY_DEFAULT = [("compare_drawn", "routing"), ("compare_crossing", "sparse")]
DRAWN = first([*BY_DEFAULT, *(case for case in KINDS if case not in BY_DEFAULT)], 2)
HOW_MANY = [2, pytest.param(30, marks=pytest.mark.full)]


@pytest.mark.parametrize(("compare", "kind"), DRAWN)
@pytest.mark.parametrize("wanted", HOW_MANY)
def test_drawn_layers_decode_as_one_call(compare, kind, wanted):
    assert getattr(decoded, compare)(kind, wanted)[1] < TOLERANCE


@pytest.mark.large
@pytest.mark.parametrize(("compare", "kind"), KINDS)
@pytest.mark.parametrize(("environment", "wanted"), MANY)
def test_many_drawn_layers_decode_as_one_call(compare, kind, environment, wanted, run_python):
    code = f"import json\nfrom tests.layers import decoded\nprint(json.dumps(decoded.{compare}({kind!r}, {wanted})))"
    assert json.loads(run_python(code, **environment))[1] < TOLERANCE


# One of each class and each cache policy; first those that no other default test decodes.
NAMES = ["fixed", "lsh", "native_grouped", "local_2d", "successors", "all", "local_window_relative", "strided_merged"]
NAMES += [
    "nearest",
    "successors_window",
    "nearest_separate",
    "selected_convolved",
    "sparse_two_groupings",
    "local_blocks",
    "local_2d_blocks",
]
NAMES += ["sparse_sinks", "sparse_routed", "sparse_heads", "selected", "selected_beside", "native", "native_relative"]
NAMES += ["successors_token_distance"]


def made(name):
    return built(CASES[name].make())


@pytest.mark.parametrize("name", first(NAMES, 1))
def test_decoding_after_prompts_of_any_length_equals_the_full_pass(name):
    assert largest_error(made(name), normal(6, 31, SIZE), np.array([0, 1, 3, 4, 5, 24])) < TOLERANCE


def test_a_cache_has_slots_for_visible_tokens_only(subtests):
    for name in NAMES:
        layer = made(name)
        sizes, small = ([leaf.shape for leaf in keras.tree.flatten(layer.init_cache(2, n))] for n in (75, 3))
        with subtests.test(name):
            # Strides, summaries, buckets and selected blocks have keys in every part of the sequence.
            if not name.startswith(("strided", "fixed", "lsh", "sparse_heads", "selected", "native")):
                longest = 40 if name.startswith("local_2d") else 15  # rows of blocks, of 5 pixels a row
                assert max(shape[2] for shape in sizes if len(shape) == 4) <= longest
            assert all(shape[2] <= 12 for shape in small if len(shape) == 4)


@pytest.mark.full
@pytest.mark.parametrize("name", first(["successors_window", "strided_merged", "fixed", "sparse_sinks", "local_2d"], 1))
@pytest.mark.parametrize("dtype", first(["mixed_bfloat16", "float16"], 1))
def test_in_half_precision_several_tokens_at_a_time_equal_one_call(name, dtype):
    layer, x = built(CASES[name].make(dtype=dtype)), normal(2, 31, SIZE)
    tolerance = {"mixed_bfloat16": 0.06, "float16": 0.01}[dtype]  # of values up to 5
    for size in (1, 5, 18):
        assert largest_error(layer, x, np.array([0, 9]), size=size) < tolerance


def test_layers_without_a_cache_give_the_reason(subtests):
    clustered, x = built(layers.ClusteredAttention(2, 4, num_clusters=3)), np.ones((2, 1, SIZE), "float32")
    later = "cannot mask later positions"
    for layer, reason in [
        (layers.RoutingAttention(2, 4, 3, 5, selection="top_k"), "clusters depend on later tokens"),
        (layers.LSHAttention(2, 4, num_buckets=4, bucket_size=5, selection="chunks"), "the members of a chunk depend"),
        (layers.RoutingAttention(2, 4, 3, 5, selection="top_keys", share_qk=False), later),
        (layers.ClusteredAttention(2, 4, num_clusters=3), later),
        (layers.LocalAttention(2, 4, key_block_size=3), later),
        (layers.GlobalLocalAttention(2, 4), later),
    ]:
        for attention in (layer, layers.MixedAttention([layers.LocalAttention(2, 4), layer])):
            with subtests.test(attention.name):
                assert reason in attention.cache_unsupported_reason
                with pytest.raises(ValueError, match="must be one that decodes with a cache"):
                    attention.init_cache(2, 9)
    calls = {"extend": (x, {}), "decode_cross": (x, {}, 0)}
    for name, arguments in calls.items():
        with subtests.test(name), pytest.raises(ValueError, match="must be one that decodes with a c"):
            getattr(clustered, name)(*arguments)
    with pytest.raises(ValueError, match="it attends to later positions"):
        layers.TransformerBlock(layers.LocalAttention(2, 4)).init_cache(2, 9)


@pytest.mark.full
@pytest.mark.parametrize("wanted", HOW_MANY)
def test_drawn_layers_decode_after_a_memory(wanted):
    assert decoded.compare_remembered(wanted)[1] < TOLERANCE


def test_a_memory_adds_only_a_mask_to_a_cache():
    layer = made("local_window")
    cache = layer.init_cache(2, 100, np.ones((2, 4, SIZE), "float32"), [[False, True, True, True]] * 2)
    expected = {"key": (2, 2, 5, 4), "value": (2, 2, 5, 4), "position": (2, 1, 5), "remembered": (2, 5)}
    assert {name: tuple(x.shape) for name, x in cache["part_0"].items()} == expected
    np.testing.assert_array_equal(cache["part_0"]["remembered"], [[False] * 2 + [True] * 3] * 2)
    assert set(layer.init_cache(2, 100)["part_0"]) == {"key", "value", "position"}


OVERRUN = [
    lambda: layers.StridedAttention(2, 4, stride=3),
    lambda: layers.FixedAttention(2, 4, block_size=4, num_summary=1),
    lambda: layers.MixedAttention([layers.RoutingAttention(2, 4, 3, 30, seed=0)]),
    lambda: layers.SparseAttention(2, 4, Window(2) | Dilated(9, 3)),
    lambda: layers.SparseAttention(2, 4, Window(30) | Stride(5) | Nearest(3, 2), seed=0),
]


@pytest.mark.parametrize("make", first(OVERRUN, 1))
def test_positions_beyond_the_cache_are_errors_or_nan_in_a_program(make):
    layer, x = built(make()), normal(2, 13, SIZE)
    cache = layer.init_cache(2, 12)
    with pytest.raises(ValueError, match="`x` must fit into the cache"):
        layer.extend(x, cache)
    _, cache = layer.extend(x[:, :11], cache)
    near, expected = layer.extend(x[:, :1], cache, index=np.array([11, 11]))
    with pytest.raises(ValueError, match="`x` must fit into the cache"):
        layer.extend(x[:, :1], expected, index=12)
    with pytest.raises(ValueError, match=r"`index` must be .* at least 0"):
        layer.extend(x[:, :1], expected, index=-1)
    with pytest.raises(ValueError, match="`x` must fit into the cache"):
        layer.extend(x[:, :3], cache, np.array([[True] * 2 + [False], [True] * 1 + [False] * 2]))
    decode = by_index(layer)
    for outside in (12, -1, 100, 2**31 - 1):
        far, after = decode(x[:, :1], cache, np.array([outside, 11], "int32"))
        assert np.isnan(far[0]).all()
        np.testing.assert_allclose(far[1], near[1], atol=TOLERANCE)
        # An ended row keeps its cache, and the other row continues as without it.
        for leaf, other, before in zip(*map(keras.tree.flatten, (after, expected, cache)), strict=True):
            np.testing.assert_allclose(leaf[1], other[1], atol=TOLERANCE)
            np.testing.assert_array_equal(leaf[0], before[0])


def small_model():
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 5}
    return with_random_weights(tsa.models.LanguageModel(tsa.models.Backbone(20, 1, 8, [part])), 0)


# What decodes, and tokens of three rows: a layer, a mixture, a block and a model.
CONTRACT = {
    "layer": lambda: (made("sparse_sinks"), normal(3, 6, SIZE)),
    "native": lambda: (made("native"), normal(3, 6, SIZE)),
    "mixed": lambda: (made("mixed"), normal(3, 6, SIZE)),
    "block": lambda: (block_of(made("nearest")), normal(3, 6, SIZE)),
    "model": lambda: (small_model(), np.arange(1, 19).reshape(3, 6)),
}


def block_of(attention):
    return built(layers.TransformerBlock(attention, causal=True))


@pytest.mark.parametrize("name", CONTRACT)
def test_an_index_or_prompt_that_does_not_follow_the_cache_is_refused(name):
    decoder, x = CONTRACT[name]()
    mask = np.ones((3, 6), bool)
    mask[1, 0] = False
    with pytest.raises(ValueError, match="`mask` must have padding on the right"):
        decoder.extend(x, decoder.init_cache(3, 9), mask)
    _, cache = decoder.extend(x[:, :3], decoder.init_cache(3, 9))
    for index in (2, 4, np.array([3, 2, 3]), ops.convert_to_tensor([3, 4, 3])):
        with pytest.raises(ValueError, match="`index` must be the number of tokens"):
            decoder.extend(x[:, 3:4], cache, index=index)


@pytest.mark.parametrize("name", first(["model", "mixed", "layer", "native", "block"], 1))
def test_in_a_program_wrong_rows_are_nan_and_do_not_change_the_cache(name):
    decoder, x = CONTRACT[name]()
    prefill, decode = as_program(decoder.extend), by_index(decoder)
    mask = np.ones((3, 4), bool)
    mask[1, 0] = False
    empty = decoder.init_cache(3, 9)

    def nan_rows(y):
        return np.isnan(ops.convert_to_numpy(y)).any(axis=(1, 2)).tolist()

    y, cache = prefill(x[:, :4], empty, mask)
    assert nan_rows(y) == [False, True, False]
    y, after = decode(x[:, 4:5], cache, np.array([-1, 3, 3]))
    assert nan_rows(y) == [True, True, True]
    for old, new in zip(keras.tree.flatten(cache), keras.tree.flatten(after), strict=True):
        np.testing.assert_array_equal(old, new)
    y, after = decode(x[:, 4:5], after, np.array([4, 3, 3]))
    assert nan_rows(y) == [False, True, True]
    y, after = decode(x[:, 4:5], after, np.array([5, 3, 4]))  # the last row goes on as if nothing had been asked
    assert nan_rows(y) == [False, True, False]
    whole, _ = decoder.extend(x[:, :5], empty)
    np.testing.assert_allclose(y[2], whole[2, 4:5], atol=TOLERANCE)
    y, _ = prefill(x[:, :4], after)
    assert nan_rows(y)[1]  # as all later outputs after a wrong prompt


def test_a_cache_ends_where_it_would_write_over_a_memory_with_gaps():
    layer, memory = built(layers.LocalAttention(2, 4, window=30)), np.ones((3, 4, SIZE), "float32")
    seen = [[True, False, False, False], [False, False, False, True], [False] * 4]
    cache = layer.init_cache(3, 2, memory, seen)
    ends = [2, 5, 6]  # after the slots that hold nothing of the memory, which begins 4, 1 and 0 positions before
    decode = by_index(layer)
    for index in range(7):
        y, cache = decode(memory[:, :1], cache, np.array(index))
        assert [bool(np.isnan(row).any()) for row in ops.convert_to_numpy(y)] == [index >= end for end in ends]
    _, cache = layer.extend(memory[:, :2], layer.init_cache(3, 2, memory, seen))
    with pytest.raises(ValueError, match=r"`x` must fit into the cache.*after \[2, 2, 2\]"):
        layer.extend(memory[:, :1], cache)
    with pytest.raises(ValueError, match=r"`x` must fit into the cache.*Received: \[3, 3, 3\] new tokens"):
        layer.extend(memory[:, :3], layer.init_cache(3, 2, memory, seen))


def test_wrong_arguments_of_decoding_are_named(subtests):
    image = layers.LocalAttention2D(2, 4, width=3, height=3, block_shape=(2, 2), order="blocks")
    window, x = layers.LocalAttention(2, 4, window=3), np.ones((3, 1, SIZE), "float32")
    with pytest.raises(ValueError, match="must be built before it decodes"):
        window.init_cache(2, 9)
    mixed = layers.MixedAttention([layers.LocalAttention(1, 4, window=3, name="near")])
    strided = layers.StridedAttention(2, 4, stride=3)
    other, half = layers.LocalAttention(2, 5, window=3), layers.LocalAttention(2, 4, window=3, dtype="bfloat16")
    for layer in (image, window, mixed, strided, other, half):
        layer.build((None, None, SIZE))
    block, model = block_of(window), Backbone(5, 1, SIZE, [window])
    cache, of_mixed, memory = window.init_cache(3, 5), mixed.init_cache(3, 5), np.ones((2, 4, SIZE), "float32")
    for name, call in [
        ("`max_length`", lambda: window.init_cache(2, 0)),
        ("`max_length`", lambda: image.init_cache(2, 10)),
        ("`batch_size`", lambda: window.init_cache(0, 9)),
        ("`memory`", lambda: strided.init_cache(2, 9, memory)),
        ("`memory`", lambda: window.init_cache(3, 9, memory)),
        ("`memory_mask`", lambda: window.init_cache(2, 9, memory, np.ones((2, 5), "bool"))),
        ("`x` must have the batch size", lambda: window.extend(x[:1], cache)),
        ("`x` must have the batch size", lambda: window.extend(x[:1], cache, index=0)),
        ("`x` must have shape", lambda: window.extend(np.ones((3, 2, SIZE + 1), "float32"), cache, index=0)),
        ("`x` must have at least one token", lambda: window.extend(x[:, :0], cache)),
        *(
            ("`index` must be", lambda index=index: window.extend(x, cache, index=index))
            for index in (np.zeros(2, "int32"), np.zeros((3, 1), "int32"), np.array([0.5, 1, 2]), 1.5, "0", True)
        ),
        *(
            ("`num_kept` must be", lambda kept=kept: window.extend(x, cache, num_kept=kept))
            for kept in (2.7, True, [1, 2])
        ),
        *(("`lengths` must be", lambda back=back: window.rewind(cache, back)) for back in (0.5, True, [0, 0], [[0]])),
        ("`cache` must be a dictionary", lambda: window.extend(x, window.extend(x, cache), index=2)),
        (r"entries \['num_tokens', 'part_0'\]", lambda: window.extend(x, of_mixed, index=0)),
        ("`cache` must be the result of `init_cache` or `extend` of", lambda: window.extend(x, other.init_cache(3, 5))),
        ("`cache` must be the result of `init_cache` or `extend` of", lambda: half.extend(x, cache)),
        (r"entries \['near'\]", lambda: mixed.extend(x, cache)),
        (r"entries \['local.*'\]", lambda: block.extend(x, cache, index=0)),
        (r"entries \['block_0'\]", lambda: model.extend(np.ones((3, 1), int), cache, index=0)),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=name):
            call()


@pytest.mark.parametrize(
    "name", first(["successors", "selected", "native", "dense", "sparse_heads", "local_window"], 1)
)
def test_a_cache_in_int8_is_smaller_and_nearly_as_exact(name):
    layer, x = made(name), normal(2, 40, SIZE)
    whole, bytes_of = ops.convert_to_numpy(layer(x, use_causal_mask=True)), {}
    for dtype, tolerance in ((None, TOLERANCE), ("int8", 0.04)):  # of values up to 5
        cache, at = layer.init_cache(2, 40, rewind=3, dtype=dtype), 0
        bytes_of[dtype] = sum(ops.convert_to_numpy(leaf).nbytes for leaf in keras.tree.flatten(cache))
        for count in (17, 1, 18, 4):
            y, cache = layer.extend(x[:, at : at + count], cache)
            at += count
            if count == 18:  # the same tokens again
                y, cache = layer.extend(x[:, at - 3 : at], layer.rewind(cache, at - 3))
            error = np.abs(ops.convert_to_numpy(y) - whole[:, at - y.shape[1] : at]).max()
            assert error < tolerance
    assert error > TOLERANCE and bytes_of["int8"] < 0.7 * bytes_of[None]
    with pytest.raises(ValueError, match="`dtype` must be one of"):
        layer.init_cache(2, 40, dtype="int4")


def separate(pattern):
    return built(layers.SparseAttention(2, 4, pattern, share_qk=False, seed=0))


# Steps at the limits of rings, tiles and blocks, and a number of tokens to take back after each step.
LIMITS = [(Window(2), [5, 2, 2, 2, 2, 2], 0), (Dilated(2, 17), [3, 16, 17], 0), (SelectedBlocks(4, 2), [7, 18, 2], 1)]
LIMITS += [(Nearest(3, 4), [6, 4, 18, 3], 3)]
LIMITS += [(Window(3), [5, 2, 2, 2, 2, 2], 0), (Dilated(2, 17), [20, 17], 0)]
LIMITS += [(Window(2) | RetrievedClusters(2, 1, 8, num_nodes=2), [7, 18, 4, 9], 3)]
LIMITS += [(Nearest(3, 4) | First(5), [6, 1, 5, 1, 18, 1, 2], 1)]


@pytest.mark.parametrize(("pattern", "steps", "back"), first(LIMITS, 4))
def test_steps_at_the_limits_of_a_cache_equal_one_call(pattern, steps, back):
    layer, length, at = separate(pattern), sum(steps), 0
    x = normal(2, length, SIZE)
    whole, cache = ops.convert_to_numpy(layer(x, use_causal_mask=True)), layer.init_cache(2, length, rewind=back)
    for count in steps:
        y, cache = layer.extend(x[:, at : at + count], cache)
        np.testing.assert_allclose(y, whole[:, at : at + count], atol=TOLERANCE)
        at += count - back
        cache = layer.rewind(cache, at)


@pytest.mark.parametrize("pattern", [SelectedBlocks(4, 2), RetrievedClusters(2, 2, 4)])
def test_a_row_without_tokens_keeps_the_sums_of_its_blocks(pattern):
    layer, x = separate(pattern), normal(2, 30, SIZE)
    whole, (_, cache) = layer(x, use_causal_mask=True), layer.extend(x[:, :17], layer.init_cache(2, 30))
    _, cache = layer.extend(x[:, 17:20], cache, index=ops.convert_to_tensor([-1, 17]))
    y, _ = layer.extend(np.stack([x[0, 17:27], x[1, 20:30]]), cache)
    for row, start in enumerate((17, 20)):
        np.testing.assert_allclose(y[row], whole[row, start : start + 10], atol=TOLERANCE)


# Small caches hold all tokens of a short sequence, but not what a convolution or a pooled block needs.
@pytest.mark.parametrize("max_length", first([6, 40], 1))
@pytest.mark.parametrize("name", first(["selected_convolved", "native", "local_window", "mixed", "nearest"], 2))
def test_tokens_that_a_cache_no_longer_holds_are_not_removed(name, max_length):
    layer, x = made(name), normal(2, max_length, SIZE)
    whole = ops.convert_to_numpy(layer(x, use_causal_mask=True))
    rewind = as_program(layer.rewind)
    for spare in (0, 2):
        _, cache = layer.extend(x, layer.init_cache(2, max_length, rewind=spare))
        for length in range(max_length, -1, -1):
            try:
                back = layer.rewind(cache, length)
            except ValueError as error:
                assert "`lengths` must be between the fewest" in str(error) and length < max_length - spare
                assert num_cached_tokens(rewind(cache, length)).numpy().tolist() == [-1, -1]
                break
            y, _ = layer.extend(x[:, length:], back) if length < max_length else (whole[:, max_length:], None)
            np.testing.assert_allclose(y, whole[:, length:], atol=TOLERANCE)
        assert spare or length == max_length - 1 or name not in ("native", "selected_convolved")
        for wrong in (-1, max_length + 1):
            with pytest.raises(ValueError, match="`lengths` must be between the fewest"):
                layer.rewind(cache, wrong)
    with pytest.raises(ValueError, match="`rewind`"):
        layer.init_cache(2, 9, rewind=-1)
