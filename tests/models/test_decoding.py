"""Models decode with a cache as they answer for the whole text, and generation says where it cannot."""

import logging
import sys

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.layers.decoded import error_of_decoding
from tests.programs import as_program, compiled_on_jax
from tf_sparse_attention.analysis import num_cached_tokens
from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator

SIZES = {"num_heads": 2, "key_dim": 4}
LOCAL = {"layer": "LocalAttention", **SIZES, "window": 6, "position": "rotary"}
ROUTING = {"layer": "RoutingAttention", **SIZES, "num_clusters": 3, "cluster_size": 4}
STRIDED = {"layer": "StridedAttention", **SIZES, "stride": 4, "heads": "interleaved"}
FIXED = {"layer": "FixedAttention", **SIZES, "block_size": 4, "num_summary": 2}
MODELS = {
    "routing_transformer": {"attention": {"parts": [LOCAL, ROUTING], "num_local_layers": 1}, "norm": "post"}
    | {"embedding": {"dim": 12}},
    "sparse_transformer": {"attention": [STRIDED], "embedding": {"grid": (5, 5)}},
    "fixed": {"attention": [FIXED], "embedding": {"sinusoidal": True}},
    "all_attention": {"attention": [{"layer": "AllAttention", **SIZES, "num_persistent": 3, "window": 6}]},
    "adaptive": {"attention": [LOCAL], "embedding": {"cutoffs": (9, 20)}},
    "memory": {"attention": [LOCAL], "memory_length": 5},
    "lsh": {"attention": [{"layer": "LSHAttention", **SIZES, "num_buckets": 4, "bucket_size": 4, "num_rounds": 2}]},
    "two_of_a_kind": {"attention": [LOCAL, {**LOCAL, "window": 3}]},
}


def make(attention, intermediate_dim=24, num_layers=2, **settings):
    keras.utils.set_random_seed(0)
    if "AllAttention" in str(attention):
        intermediate_dim = None
    backbone = Backbone(30, num_layers, 16, attention, intermediate_dim=intermediate_dim, seed=0, **settings)
    model = LanguageModel(backbone)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.2 * keras.random.normal(weight.shape, seed=1))
    return model


def largest_error(model, ids, lengths, memory=None, documents=None):
    """Return the largest difference between logits of decoding, after prompts of these lengths, and of one call.

    With a memory the call is that of `forward_with_memory`, of `documents` (B,).
    """
    segments = {} if documents is None else {"segment_ids": np.repeat(documents[:, None], ids.shape[1], 1)}
    run = compiled_on_jax(model if memory is None else model.forward_with_memory)
    whole = run(ids) if memory is None else run({"token_ids": ids, **segments}, memory)[0]
    return error_of_decoding(model, ids, lengths, model.init_cache(*ids.shape, memory), whole)


@pytest.mark.parametrize("name", first(MODELS, 1))
def test_logits_are_those_of_one_call(name):
    ids = np.random.default_rng(0).integers(1, 30, (3, 14))
    assert largest_error(make(**MODELS[name]), ids, np.array([5, 0, 14])) < 1e-4


REMEMBERING = {
    "rotary": {"attention": [LOCAL], "memory_length": 5},
    "longer_than_a_window": {"attention": [LOCAL, {**LOCAL, "window": 3}], "memory_length": 9, "norm": "post"},
    "blocks": {"attention": [{"layer": "LocalAttention", **SIZES, "block_size": 4}], "memory_length": 6},
    "all_attention": {**MODELS["all_attention"], "memory_length": 4},
}


@pytest.mark.full
@pytest.mark.parametrize("name", first(["longer_than_a_window", "all_attention", "blocks", "rotary"], 1))
def test_logits_after_a_memory_are_those_of_reading_on(name):
    model, rng = make(**REMEMBERING[name]), np.random.default_rng(0)
    first, ids = rng.integers(1, 30, (3, 11)), rng.integers(1, 30, (3, 9))
    padded = {"token_ids": first, "padding_mask": np.arange(11) < np.array([[11], [9], [0]])}
    memory = model.forward_with_memory(padded, model.init_memory(3))[1]
    assert largest_error(model, ids, np.array([5, 1, 7]), memory) < 1e-4


@pytest.mark.full
def test_rows_go_on_with_the_document_that_they_read_last():
    model, rng = make(**REMEMBERING["rotary"], num_layers=1), np.random.default_rng(0)
    segments = np.array([[4] * 9 + [7] * 2, [3] * 11, [5, 5, 5, 5, 5, 5, 5, 9, 9, 5, 5]])
    first = {"token_ids": rng.integers(1, 30, (3, 11)), "segment_ids": segments}
    memory = model.forward_with_memory(first, model.init_memory(3))[1]
    assert largest_error(model, rng.integers(1, 30, (3, 9)), np.array([2, 1, 4]), memory, segments[:, -1]) < 1e-4


@pytest.mark.parametrize("masked", first([False, True], 1))
def test_an_empty_memory_is_what_reading_on_takes_it_for(masked):
    model, ids = make(**REMEMBERING["rotary"], num_layers=1), np.random.default_rng(0).integers(1, 30, (2, 6))
    assert largest_error(model, ids, np.array([3, 1]), model.init_memory(2, masked)) < 1e-4


def test_a_model_that_cannot_says_so_and_generates_all_the_same(caplog):
    model = make([{**ROUTING, "selection": "top_k"}], num_layers=1)
    with pytest.raises(ValueError, match="must be one that decodes with a cache: with selection='top_k'"):
        model.init_cache(2, 9)
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="is not causal"):
        rows = model.generate([[3, 4]], max_length=6, strategy="greedy", stop_token_ids=None)
    assert "decodes without a cache because with selection='top_k'" in caplog.text
    assert len(rows[0]) == 6


@pytest.mark.full
def test_a_text_ends_with_the_positions_that_a_model_has():
    model = make([STRIDED], embedding={"grid": (3, 3)}, num_layers=1)
    model._generator = Generator(model, run_eagerly=True)
    assert len(model.generate([3], max_length=9, stop_token_ids=None)) == 9
    for length in (10, np.int64(10)):
        for call in (lambda size: model.generate([3], max_length=size), lambda size: model.init_cache(1, size)):
            with pytest.raises(ValueError, match="`max_length`"):
                call(length)
    local = make([LOCAL], embedding={"grid": (3, 3)}, num_layers=1)  # a window has room for any number of tokens
    ids, is_token = np.ones((2, 10), "int32"), np.arange(10) < np.array([[9], [10]])
    local.extend(ids, local.init_cache(2, 9), np.arange(10) < np.array([[9], [8]]))
    with pytest.raises(ValueError, match=r"`inputs` must be within the 9 positions.*in rows \[1\]"):
        local.extend(ids, local.init_cache(2, 9), is_token)
    y, _ = as_program(local.extend)(ids, local.init_cache(2, 9), is_token)
    assert np.isnan(ops.convert_to_numpy(y)[1, 9]).all() and np.isfinite(ops.convert_to_numpy(y)[0, :9]).all()


def test_what_cannot_be_decoded_is_refused(subtests):
    model = make([LOCAL])
    cache, ids = model.init_cache(2, 9), np.ones((2, 3), "int32")
    masked = {"token_ids": ids, "padding_mask": ids > 0}
    arrays = keras.tree.map_structure(ops.convert_to_numpy, cache)
    for name, call in [
        ("`encoder_sequence` must be None", lambda: model.init_cache(2, 9, encoder_sequence=np.ones((2, 3, 16)))),
        ("`cache` .*block_1", lambda: make([LOCAL], num_layers=1).extend(ids, cache)),
        ("`cache` must hold tensors", lambda: model.extend(ids, arrays)),
        ("`cache` must hold tensors", lambda: model.rewind(arrays, 0)),
        ("`cache` must be the result", lambda: num_cached_tokens({})),
        ("`mask` must be None", lambda: model.extend(masked, cache, ids > 0)),
        ("`mask` must be None", lambda: model.prefill(masked, cache, ids > 0)),
        ("`inputs`", lambda: model.extend(ids[:1], cache)),
        ("`inputs`", lambda: model.extend(ids[:, :0], cache)),
        ("`index`", lambda: model.extend(ids, cache, index=np.zeros(3, "int32"))),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=name):
            call()
    with pytest.raises(ValueError, match="must be one that decodes with a cache: it attends to later tokens"):
        make([LOCAL], causal=False).init_cache(2, 9)
    with pytest.raises(ValueError, match="`memory`"):
        model.init_cache(2, 9, {"segment_ids": np.zeros((2, 4), "int32")})
    inputs = {"token_ids": np.ones((1, 4), "int32"), "segment_ids": np.zeros((1, 4), "int32")}
    with pytest.raises(ValueError, match="`inputs`"):
        model.extend(inputs, model.init_cache(1, 9))


@pytest.mark.full
@pytest.mark.parametrize("as_one_program", [False, True])
def test_a_prompt_is_read_in_chunks(as_one_program):
    model, ids = make([LOCAL]), np.arange(1, 43).reshape(3, 14) % 19 + 1
    is_token = np.arange(14) < np.array([[14], [9], [0]])
    whole, expected = model.extend(ids, model.init_cache(3, 20), is_token)
    read = as_program(model.prefill) if as_one_program else model.prefill
    for chunk_size in (4, 14, 50):
        logits, cache = read(ids, model.init_cache(3, 20), is_token, chunk_size=chunk_size)
        np.testing.assert_allclose(logits[:2, 0], ops.convert_to_numpy(whole)[[0, 1], [13, 8]], atol=1e-5)
        for one, other in zip(*map(keras.tree.flatten, (cache, expected)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    wrong = np.arange(14) >= np.array([[5], [0], [0]])
    if as_one_program:
        logits, cache = read(ids, model.init_cache(3, 20), wrong, chunk_size=4)
        assert np.isnan(ops.convert_to_numpy(logits)).any(axis=(1, 2)).tolist() == [True, False, False]
    else:
        with pytest.raises(ValueError, match="`mask` must have padding on the right"):
            read(ids, model.init_cache(3, 20), wrong, chunk_size=4)
        with pytest.raises(ValueError, match="`chunk_size`"):
            read(ids, model.init_cache(3, 20), chunk_size=0)


def test_a_program_of_decoding_converts_no_function_of_the_library():
    sources = []

    @keras.saving.register_keras_serializable("test_decoding")
    class Recorded(LocalAttention):
        def extend_attention(self, *arguments):
            sources.append(sys._getframe().f_code.co_filename)  # a generated file if AutoGraph converts the method
            return super().extend_attention(*arguments)

    backbone = Backbone(9, 1, 8, [Recorded(1, 4, window=3), Recorded(1, 4, window=2, name="near")], intermediate_dim=8)
    model, ids, x = LanguageModel(backbone), np.ones((2, 1), "int32"), np.ones((2, 1, 8), "float32")
    model(ids)
    block = backbone.blocks[0]
    mixed = block.attention
    for decoder, inputs in [(model, ids), (backbone, ids), (block, x), (mixed, x), (mixed.parts[0], x)]:
        cache = decoder.init_cache(2, 4)
        as_program(lambda inputs, cache, decoder=decoder: decoder.extend(inputs, cache))(inputs, cache)
    assert len(sources) == 9 and set(sources) == {__file__}
