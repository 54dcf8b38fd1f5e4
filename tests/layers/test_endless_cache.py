"""Unbounded decoding: caches of constant size, and positions inside the cache as in StreamingLLM."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import assert_close, normal, to_numpy, with_random_weights
from tests.draws import first
from tests.layers.decoded import by_index
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.layers import BlockSelectedAttention, LocalAttention, MixedAttention, SparseAttention
from tf_sparse_attention.layers.parts.projections import join_heads
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.ops.positions import Rotary
from tf_sparse_attention.patterns import First, Heads, Nearest, Window

SIZE, LENGTH, FIRST, WINDOW = 8, 14, 2, 5
SINKS = Window(WINDOW) | First(FIRST)
STREAMING = {"layer": "SparseAttention", "num_heads": 2, "key_dim": 4, "pattern": SINKS}
STREAMING |= {"position": "rotary", "num_key_value_heads": 1}


def layer_of(pattern=SINKS, **arguments):
    keras.utils.set_random_seed(0)
    layer = SparseAttention(4, 6, pattern, **{"num_key_value_heads": 2, "position": "rotary", **arguments})
    layer.build((2, LENGTH, SIZE))
    return with_random_weights(layer)


def decoded(layer, x, cache, start=0):
    """Return the outputs of tokens decoded one by one, and the cache after them."""
    outputs = []
    for index in range(start, x.shape[1]):
        output, cache = layer.extend(x[:, index : index + 1], cache, index=index)
        outputs.append(to_numpy(output))
    return np.concatenate(outputs, 1), cache


def shapes(cache):
    return keras.tree.map_structure(lambda leaf: tuple(leaf.shape), cache)


@pytest.mark.full
@pytest.mark.parametrize("pattern", first([SINKS, Window(3) | Nearest(3, 4)], 1))
def test_without_a_maximum_length_the_cache_is_that_of_a_long_one_and_does_not_grow(pattern):
    layer, x = layer_of(pattern), normal(2, LENGTH, SIZE)
    cache = layer.init_cache(2, None)
    assert shapes(cache) == shapes(layer.init_cache(2, 10_000))
    whole = to_numpy(layer(x, use_causal_mask=True))
    assert_close(decoded(layer, x, layer.init_cache(2, LENGTH - 4))[0], whole, 1e-5)  # a maximum that limits nothing
    outputs, after = decoded(layer, x, cache)
    assert shapes(after) == shapes(cache)
    assert_close(outputs, whole, 1e-5)
    last = 2**30 - 2
    far, _ = layer.extend(x[:, :1], {**after, "num_tokens": ops.full((2,), last, dtype="int32")}, index=last)
    assert np.isfinite(to_numpy(far)).all()


ROTARY = [{"rotary_type": "yarn", "rotary_scaling_factor": 4.0}, {}, {"rotary_type": "dynamic"}]
ROTARY += [{"rotary_type": "llama3", "rotary_scaling_factor": 8.0}, {"rotary_type": "linear", "rotary_dim": 2}]


@pytest.mark.full
@pytest.mark.parametrize("start", first([2**30 - 100, 10**7], 1))
@pytest.mark.parametrize("settings", first(ROTARY, 1))
def test_a_window_with_rotary_positions_is_as_accurate_far_away_as_at_the_start(settings, start):
    layer, x = layer_of(Window(16), **settings), normal(2, 20, SIZE)
    near, decode = layer(x, use_causal_mask=True), by_index(layer)
    cache = {**layer.init_cache(2, None), "num_tokens": ops.full((2,), start, dtype="int32")}
    for index in range(20):
        far, cache = decode(x[:, index : index + 1], cache, np.array(start + index, "int32"))
    assert_close(far[:, 0], near[:, -1], 1e-5)


@pytest.mark.full
def test_in_half_precision_a_window_is_as_accurate_far_away_as_at_the_start():
    layer, x = layer_of(Window(16), dtype="bfloat16"), normal(2, 20, SIZE)
    exact = layer_of(Window(16))
    errors, expected = [], to_numpy(exact(x, use_causal_mask=True))[:, -1]
    for start in (0, 10**8):
        cache = {**layer.init_cache(2, None), "num_tokens": ops.full((2,), start, dtype="int32")}
        for index in range(20):
            found, cache = layer.extend(x[:, index : index + 1], cache, index=start + index)
        errors.append(np.abs(to_numpy(ops.cast(found, "float32"))[:, 0] - expected).mean())
    assert errors[1] < 1.5 * errors[0] < 0.1


def by_the_rule(layer, x):
    """StreamingLLM in NumPy: each token asks its cache, whose keys are turned by their places in it."""
    queries, keys, values = (to_numpy(part).astype("float64") for part in layer.project(ops.convert_to_tensor(x)))
    rotary, rows = Rotary(layer.head_settings.rotary), []
    for index in range(x.shape[1]):
        cache = [p for p in range(index + 1) if p < FIRST or p > index - WINDOW]
        places = np.arange(len(cache))
        key = np.repeat(to_numpy(rotary.rotate(ops.convert_to_tensor(keys[:, :, cache]), places)), 2, axis=1)
        query = to_numpy(rotary.rotate(ops.convert_to_tensor(queries[:, :, index : index + 1]), places[-1:]))
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(layer.key_dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        rows.append(weights @ np.repeat(values[:, :, cache], 2, axis=1))
    heads = np.concatenate(rows, axis=2).astype("float32")
    return to_numpy(join_heads(layer.output_dense, ops.convert_to_tensor(heads)))


def test_positions_in_the_cache_equal_streaming_llm():
    layer, x, prompt = layer_of(), normal(2, LENGTH, SIZE), FIRST + WINDOW
    given, cache = layer.extend(x[:, :prompt], layer.init_cache(2, None, positions_in_cache=True))
    outputs = np.concatenate([to_numpy(given), decoded(layer, x, cache, prompt)[0]], 1)
    assert_close(outputs, by_the_rule(layer, x), 1e-5)
    at_once, _ = layer.extend(x, layer.init_cache(2, None, positions_in_cache=True))  # longer than the cache
    assert_close(at_once, by_the_rule(layer, x), 1e-5)
    whole = to_numpy(layer(x, use_causal_mask=True))
    assert_close(outputs[:, : FIRST + WINDOW], whole[:, : FIRST + WINDOW], 1e-5)
    assert np.abs(outputs - whole).max() > 1e-2  # where the first tokens are further away


def test_wrong_arguments_of_unbounded_decoding_are_named(subtests):
    growing = [[STREAMING], [STREAMING, {"layer": "DenseAttention", "num_heads": 1, "key_dim": 4}]]
    selected, local = BlockSelectedAttention(1, 4), LocalAttention(2, 4, window=3)
    mixed = MixedAttention([LocalAttention(2, 4, window=3), LocalAttention(2, 4, window=4)])
    for layer in (selected, local, mixed):
        layer.build((1, 9, SIZE))
    assert mixed.init_cache(1, None, positions_in_cache=True)
    for name, decoder, arguments in [
        ("max_length", LanguageModel(Backbone(20, 2, 16, growing)), {}),
        ("max_length", selected, {}),
        ("max_length", LanguageModel(Backbone(20, 1, 16, [STREAMING], embedding={"grid": (4, 4)})), {}),
        ("positions_in_cache", layer_of(Window(3) | Nearest(3, 4)), {"positions_in_cache": True}),
        ("positions_in_cache", layer_of(Heads([(2, Window(3)), (2, Window(4))])), {"positions_in_cache": True}),
        ("positions_in_cache", layer_of(position="alibi"), {"positions_in_cache": True}),
        ("memory", local, {"memory": normal(1, 3, SIZE), "positions_in_cache": True}),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            decoder.init_cache(1, 9 if name == "memory" else None, **arguments)


@pytest.mark.parametrize("run_eagerly", first([True, False], 1))
def test_a_stream_without_a_maximum_length_equals_one_with_it(run_eagerly):
    model = LanguageModel(Backbone(20, 1, 16, [STREAMING], seed=0))
    model._generator = Generator(model, run_eagerly)
    settings = {"strategy": Sampling(temperature=0.9), "seed": 3, "stop_token_ids": None, "chunk_size": 3}
    endless = model.stream([4, 5, 6], None, **settings)
    ids = np.concatenate([next(endless) for _ in range(3)])
    np.testing.assert_array_equal(ids, np.concatenate([*model.stream([4, 5, 6], 9, **settings)]))
    stopped = model.stream([4, 5, 6], None, **{**settings, "stop_token_ids": ids[7:8]})
    end = 3 + list(ids[3:]).index(ids[7])
    np.testing.assert_array_equal(np.concatenate([*stopped]), ids[: end + 1])
    for name, arguments in {
        "strategy": {"max_length": None, "strategy": Sampling(repetition_penalty=1.2)},
        "tokenizer": {"max_length": None, "tokenizer": ByteTokenizer()},
        "positions_in_cache": {"max_length": 9, "positions_in_cache": True},
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must"):
            model.stream([4], **arguments)


def spread(logits, keys):
    """A sampler without chance whose ids differ from step to step; 0 is padding."""
    return 1 + ops.argmax(ops.sin(9.0 * logits[:, 1:]), axis=-1)


LONG = list(range(4, 12))


@pytest.mark.full
@pytest.mark.parametrize(("prompt", "run_eagerly"), first([(LONG, True), (LONG, False), ([4], True)], 1))
def test_a_stream_with_positions_in_the_cache_is_decoding_token_by_token(prompt, run_eagerly):
    model = LanguageModel(Backbone(20, 1, 16, [STREAMING], seed=0))
    model.set_weights([normal(*w.shape, seed=i) for i, w in enumerate(model.get_weights())])
    model._generator = Generator(model, run_eagerly)
    cache, ids = model.init_cache(1, None, positions_in_cache=True), [0, *prompt]  # from the start id on
    for index in range(len(prompt) + 3):
        logits, cache = model.extend(np.array([[ids[index]]]), cache, index=index)
        if index >= len(prompt):
            ids.append(int(spread(logits[:, 0], None)[0]))
    settings = {"strategy": spread, "stop_token_ids": None, "chunk_size": 3}
    found, by_distance = (
        np.concatenate([*itertools.islice(model.stream(prompt, None, **settings, **more), 2)])
        for more in ({"positions_in_cache": True}, {})
    )
    np.testing.assert_array_equal(found, ids[1:])
    is_beyond = len(found) > FIRST + WINDOW  # only a text longer than the cache is read in another way
    assert (by_distance != found).any() == is_beyond
