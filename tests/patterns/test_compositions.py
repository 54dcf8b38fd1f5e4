"""Compositions of patterns equal dense attention under a mask made from definitions, and decode as they attend."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests.ops.compare import differentiate
from tests.patterns.compositions import BY_CONTENT, FIXED, compositions, visible
from tf_sparse_attention.analysis import assert_causal
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.patterns import Union
from tf_sparse_attention.patterns.plan import plan_heads

SIZE, KEY_DIM = 6, 4
CLOSE = 5e-6  # outputs are of size one


def marked(value, name):
    return pytest.param(value, marks=getattr(pytest.mark, name))


def numbers(x):
    return np.array(ops.convert_to_numpy(x))


def make_layer(pattern, num_heads, seed=0, **options):
    """Returns a built layer whose biases are not zero."""
    keras.utils.set_random_seed(seed)
    layer = SparseAttention(num_heads, KEY_DIM, pattern, seed=seed, **options)
    layer.build((None, None, SIZE))
    draw = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(weight + 0.2 * draw.standard_normal(weight.shape))
    return layer


def groups_of_leaves(layer, x, exists, segments):
    """Returns the groups of the tokens of one row, as `compositions.visible` takes them, from the layer."""
    query, key, _ = layer.project(x)
    key = query if key is None else key
    found = [None] * len(layer.pattern.leaves())
    for plan in plan_heads(layer.pattern, layer.num_heads):
        for leaf in plan.leaves:
            if not leaf.pattern.by_content:
                continue
            grouper = layer.groupers[leaf.index]
            sides = [layer.group_inputs(ops.take(side, list(plan.heads), axis=1)) for side in (query, key)]
            own = [numbers(grouper.assign(side, None)) for side in sides]
            found[leaf.index] = [
                [
                    [(int(segments[i]), int(group)) if exists[i] else None for i, group in enumerate(side[0, head])]
                    for side in own
                ]
                for head in range(len(plan.heads))
            ]
    return found


def expected_mask(layer, x, causal, exists, segments, pairs):
    """Returns which keys each query of one row sees, (N, T, T)."""
    length = x.shape[1]
    seen = visible(layer.pattern, length, causal, groups_of_leaves(layer, x, exists, segments), segments)
    seen = np.broadcast_to(seen, (layer.num_heads, length, length))
    seen = seen & (segments[:, None] == segments[None, :]) & exists & exists[:, None] & pairs
    if layer.share_qk:
        own = np.eye(length, dtype=bool)
        alone = ~np.any(seen & ~own, axis=-1, keepdims=True)
        seen = seen & (~own | alone)
    return seen


def dense_twin(layer, mask):
    """Returns dense attention under a mask (1, N, T, T), as a function of the input, with the weights of a layer."""
    weights = {weight.path.split("/", 1)[-1]: numbers(weight) for weight in layer.trainable_weights}
    for name in ("kernel", "bias"):
        weights.setdefault(f"key/{name}", weights[f"query/{name}"])
    some = mask.any(-1)[..., None]

    def attend(x):
        query, key, value = (
            ops.einsum("btd,dnh->bnth", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = ops.einsum("bnth,bnsh->bnts", query, key) * KEY_DIM**-0.5
        shares = ops.softmax(ops.where(mask, scores, -1e9), axis=-1)
        heads = ops.where(some, ops.einsum("bnts,bnsh->bnth", shares, value), 0)
        output = ops.einsum("bnth,nhd->btd", heads, weights["attention_output/kernel"])
        return output + weights["attention_output/bias"]

    return attend


def check(pattern, num_heads, length, causal, seed, masked, share_qk):
    """Compares outputs, gradients and the dense twin of one composition with dense attention."""
    draw = np.random.default_rng(seed)
    layer = make_layer(pattern, num_heads, seed, share_qk=share_qk)
    x = draw.standard_normal((1, length, SIZE)).astype("float32")
    exists = np.ones(length, bool)
    segments = np.zeros(length, "int32")
    pairs, call = np.ones((1, 1), bool), {}
    if masked:
        exists = np.arange(length) < draw.integers(1, length + 1)
        segments = np.sort(draw.integers(0, 4, length)).astype("int32")
        pairs = draw.random((length, length)) < 0.8
        call = {"query_mask": exists[None], "segment_ids": segments[None], "attention_mask": pairs}
    mask = expected_mask(layer, x, causal, exists, segments, pairs)
    twin = layer.attention_pattern(x, use_causal_mask=causal, **call)
    np.testing.assert_array_equal(numbers(twin)[0], mask)
    cotangent = draw.standard_normal((1, length, SIZE)).astype("float32")
    dense = dense_twin(layer, mask[None])
    inputs = {"x": x}
    (wanted,), slopes = differentiate(lambda x: (dense(x["x"]),), inputs, cotangent)
    (output,), gradients = differentiate(lambda x: (layer(x["x"], use_causal_mask=causal, **call),), inputs, cotangent)
    np.testing.assert_allclose(numbers(output), numbers(wanted), rtol=0, atol=CLOSE)
    np.testing.assert_allclose(numbers(gradients["x"]), numbers(slopes["x"]), rtol=0, atol=4 * CLOSE)


def check_decoding(pattern, num_heads, length, prompt, seed, share_qk):
    """Compares decoding after a prompt with one causal call."""
    layer = make_layer(pattern, num_heads, seed, share_qk=share_qk)
    x = np.random.default_rng(seed).standard_normal((2, length, SIZE)).astype("float32")
    whole = numbers(layer(x, use_causal_mask=True))
    cache = layer.init_cache(2, length)
    found = []
    if prompt:
        output, cache = layer.prefill(x[:, :prompt], cache)
        found.append(numbers(output))
    for index in range(prompt, length):
        output, cache = layer.decode(x[:, index : index + 1], cache, index)
        found.append(numbers(output))
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("share_qk", [False, True])
@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_compositions_equal_dense_attention(name, share_qk):
    for causal in (True, False):
        for masked in (False, True):
            check(*FIXED[name], length=41, causal=causal, seed=1, masked=masked, share_qk=share_qk)


@pytest.mark.parametrize("name", list(BY_CONTENT))
def test_unions_of_groups_by_content_equal_dense_attention(name):
    check(*BY_CONTENT[name], length=17, causal=True, seed=2, masked=True, share_qk=False)
    check(*BY_CONTENT[name], length=17, causal=False, seed=3, masked=False, share_qk=True)


@pytest.mark.parametrize("name", list(BY_CONTENT))
def test_unions_of_groups_by_content_decode_as_they_attend(name):
    check_decoding(*BY_CONTENT[name], length=9, prompt=4, seed=4, share_qk=False)


@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_compositions_decode_as_they_attend(name):
    check_decoding(*FIXED[name], length=23, prompt=9, seed=0, share_qk=name == "routed")


@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_compositions_are_causal(name):
    assert_causal(make_layer(*FIXED[name]), sequence_length=48, hidden_dim=SIZE)


@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_compositions_come_back_from_their_config(name):
    pattern, num_heads = FIXED[name]
    layer = make_layer(pattern, num_heads)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.pattern == pattern


@pytest.mark.parametrize("name", list(FIXED))
def test_fixed_compositions_are_saved_with_their_groups(name, tmp_path):
    inputs = keras.Input((None, SIZE))
    model = keras.Model(inputs, make_layer(*FIXED[name])(inputs, use_causal_mask=True))
    x = np.random.default_rng(0).standard_normal((2, 30, SIZE)).astype("float32")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numbers(again(x)), numbers(model(x)), rtol=0, atol=1e-6)


def test_centroids_of_a_union_learn_in_training():
    layer = make_layer(*FIXED["routed"])
    grouper = next(each for each in layer._groupers if each is not None)
    before = numbers(grouper.centroids)
    layer(np.random.default_rng(0).standard_normal((2, 30, SIZE)).astype("float32"), training=True)
    assert len(layer.losses) == 1
    assert np.abs(numbers(grouper.centroids) - before).max() > 1e-4


@pytest.mark.parametrize("wanted", [marked(20, "full"), marked(200, "large")])
def test_drawn_compositions_equal_dense_attention_and_decode(wanted):
    drawn = set()

    @settings(max_examples=wanted + 20)
    @given(compositions(), st.integers(1, 70), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9))
    def compare(composition, length, causal, masked, share_qk, seed):
        drawn.add(composition)
        check(*composition, length, causal, seed, masked, share_qk)
        check_decoding(*composition, min(length, 17), min(length, 17) // 2, seed, share_qk)

    compare()
    assert len(drawn) >= wanted


def test_a_union_counts_each_pair_once():
    # Zero scores: the output is the mean of the values seen.
    from tests.ops.small_cases import column
    from tf_sparse_attention.patterns import First, Window
    from tf_sparse_attention.patterns.attending import attend_pattern

    zeros, values = column([0] * 5), column([1, 2, 4, 8, 16])
    once = attend_pattern(Window(2) | First(1) | Window(2), zeros, zeros, values, causal=True).output
    np.testing.assert_allclose(numbers(once)[0, 0, :, 0], [1, 1.5, 7 / 3, 13 / 3, 25 / 3], rtol=1e-6)
    each = Union((Window(2), First(1)), count_each=True)
    often = attend_pattern(each, zeros, zeros, values, causal=True).output
    np.testing.assert_allclose(numbers(often)[0, 0, :, 0], [1, 4 / 3, 7 / 3, 13 / 3, 25 / 3], rtol=1e-6)


def test_parts_that_are_no_single_softmax_are_refused():
    from tf_sparse_attention.patterns import Heads, Window
    from tf_sparse_attention.patterns.nearest import BestOfCluster

    for part in (BestOfCluster(4, 8), Heads([(1, Window(3)), (1, Window(4))])):
        with pytest.raises(ValueError, match=r"`parts` of a union must each be one softmax.*Received"):
            Window(4) | part
