"""Strided and fixed attention: how the heads share the two patterns, and what the arguments may be."""

import keras
import numpy as np
import pytest

from tests.contracts import SIZE, normal, to_numpy, with_random_weights
from tests.oracle import definitions
from tf_sparse_attention.layers import FixedAttention, MixedAttention, StridedAttention
from tf_sparse_attention.models import Backbone

X = normal(2, 12, SIZE)


def strided(num_heads=2, **own):
    return StridedAttention(num_heads, 4, **{"stride": 4, **own})


def fixed(num_heads=2, **own):
    return FixedAttention(num_heads, 4, **{"block_size": 4, "num_summary": 1, **own})


def pattern(layer, x=X, **arguments):
    """Return the pattern of each head, bool (N, T, S)."""
    return to_numpy(layer.attention_pattern(x, use_causal_mask=True, **arguments))[0]


@pytest.mark.parametrize(("num_heads", "near"), [(2, 1), (3, 2), (4, 2), (7, 4), (8, 4)])
@pytest.mark.parametrize("make", [strided, fixed])
def test_split_heads_are_local_first_and_one_more_of_an_odd_number(make, num_heads, near):
    heads, (local, far) = pattern(make(num_heads)), near_and_far(make)
    for index, head in enumerate(heads):
        np.testing.assert_array_equal(head, local if index < near else far)


def near_and_far(make):
    """Return the causal masks of the two patterns, by definition."""
    if make is strided:
        return [definitions.strided(12, 12, 4, part, causal=True) for part in ("local", "far")]
    return [definitions.fixed(12, 12, 4, 1, 0, part, causal=True) for part in ("local", "far")]


@pytest.mark.parametrize("make", [strided, fixed])
def test_merged_heads_all_have_the_union(make):
    union = np.logical_or(*near_and_far(make))
    for num_heads in (1, 3):
        np.testing.assert_array_equal(pattern(make(num_heads, heads="merged")), np.tile(union, (num_heads, 1, 1)))


@pytest.mark.parametrize("make", [strided, fixed])
def test_interleaved_layers_are_local_if_even_and_far_if_odd(make):
    for index in range(4):
        heads = pattern(make(1, heads="interleaved", layer_index=index))
        np.testing.assert_array_equal(heads, [near_and_far(make)[index % 2]])


@pytest.mark.parametrize("make", [strided, fixed])
def test_two_layers_pass_on_information_between_any_two_positions(make):
    near, far = near_and_far(make)
    unit = np.eye(12, dtype=bool)  # what a residual connection passes on
    assert not near.all() and not far.all()
    np.testing.assert_array_equal((far | unit) @ (near | unit), np.tri(12, dtype=bool))


def test_heads_that_see_summaries_take_the_groups_in_turn():
    # Heads 0 to 3 are local; 4, 5 and 6 have the groups 0, 1 and 2, and so on if there were more.
    heads = pattern(fixed(7, num_groups=3))
    assert [np.flatnonzero(head[-1]).tolist() for head in heads[4:]] == [[3, 7, 11], [2, 6, 10], [1, 5, 9]]
    assert [np.flatnonzero(head[-1]).tolist() for head in heads[:4]] == [[8, 9, 10, 11]] * 4
    merged = pattern(fixed(4, num_groups=2, num_summary=2, heads="merged"))
    summaries = [[2, 3, 6, 7, 8, 9, 10, 11], [0, 1, 4, 5, 8, 9, 10, 11]] * 2
    assert [np.flatnonzero(head[-1]).tolist() for head in merged] == summaries


def test_each_head_attends_with_its_own_group():
    # One head of size one each: the output keeps the heads apart.
    layer = FixedAttention(
        4, 1, block_size=3, num_summary=1, num_groups=2, heads="merged", use_bias=False, output_shape=4
    )
    layer.build((1, 1, 1))
    zeros, ones, apart = np.zeros((1, 4, 1)), np.ones((1, 4, 1)), np.eye(4).reshape(4, 1, 4)
    layer.set_weights([zeros, zeros, ones, apart])
    output = to_numpy(layer(np.reshape([1.0, 2, 4, 8, 16, 32], (1, -1, 1)), use_causal_mask=True))[0]
    # The last query sees 3, 4, 5 and the summary 2; in the other group it sees 3, 4, 5 and the summary 1.
    np.testing.assert_allclose(output[-1], [60 / 4, 58 / 4] * 2, rtol=1e-6)
    np.testing.assert_allclose(output[3], [12 / 2, 10 / 2] * 2)


def test_the_first_positions_have_no_summary_and_get_zeros():
    layer = fixed(heads="interleaved", layer_index=1, num_summary=2, use_bias=False)
    layer.build(X.shape)
    with_random_weights(layer)
    output = to_numpy(layer(X, use_causal_mask=True))
    assert np.all(output[:, :2] == 0) and np.all(np.any(output[:, 2:] != 0, axis=-1))


@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        (strided(position="relative"), 2 * 4 + 1),
        (fixed(position="relative", block_size=6), 2 * 6 + 1),
        (strided(position="relative", max_distance=2), 5),
        (fixed(position="relative", max_distance=40), 81),
    ],
)
def test_the_table_of_distances_reaches_as_far_as_stride_or_block_unless_told_otherwise(layer, rows):
    layer.build(X.shape)
    assert {weight.shape[0] for weight in layer.weights if weight.name.startswith("relative")} == {rows}


def test_without_arguments_stride_and_block_are_128_with_8_summaries():
    assert StridedAttention(2, 4).get_config()["stride"] == 128
    config = FixedAttention(2, 4).get_config()
    assert (config["block_size"], config["num_summary"], config["num_groups"]) == (128, 8, 1)
    assert config["heads"] == "split" and config["layer_index"] is None


def test_any_period_shorter_or_longer_than_the_sequence_works():
    for make in (lambda **own: strided(stride=1, **own), lambda **own: strided(stride=100, **own)):
        for own in ({}, {"heads": "merged"}, {"heads": "interleaved", "layer_index": 1}):
            assert np.all(np.isfinite(to_numpy(make(**own)(X, use_causal_mask=True))))
    np.testing.assert_array_equal(pattern(strided(1, stride=100, heads="merged"))[0], np.tri(12))
    np.testing.assert_array_equal(pattern(fixed(1, block_size=100, heads="merged"))[0], np.tri(12))


INTERLEAVED = [
    {"layer": "StridedAttention", "num_heads": 1, "key_dim": 4, "stride": 4, "heads": "interleaved"},
    {
        "layer": "FixedAttention",
        "num_heads": 2,
        "key_dim": 4,
        "block_size": 4,
        "num_summary": 1,
        "heads": "interleaved",
    },
]


def backbone(**changes):
    return Backbone(**{"vocabulary_size": 20, "num_layers": 3, "hidden_dim": SIZE, "attention": INTERLEAVED, **changes})


def test_a_backbone_numbers_its_interleaved_layers():
    blocks = backbone().blocks
    for index, block in enumerate(blocks):
        assert [part.layer_index for part in block.attention.parts] == [index, index]
        part = index % 2
        expected = [near_and_far(strided)[part], *[near_and_far(fixed)[part]] * 2]
        np.testing.assert_array_equal(pattern(block.attention), expected)


def test_a_backbone_leaves_a_given_number_and_other_heads_alone():
    given = [{**part, "layer_index": 7} for part in INTERLEAVED]
    assert [block.attention.parts[0].layer_index for block in backbone(attention=given).blocks] == [7, 7, 7]
    merged = [{**part, "heads": "merged"} for part in INTERLEAVED]
    assert [block.attention.parts[1].layer_index for block in backbone(attention=merged).blocks] == [None] * 3


def test_an_interleaved_backbone_survives_its_config_and_a_file(tmp_path):
    model, ids = backbone(seed=1), np.arange(24).reshape(2, 12) % 20
    copy = Backbone.from_config(model.get_config())
    assert [block.attention.parts[1].layer_index for block in copy.blocks] == [0, 1, 2]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(loaded(ids)), to_numpy(model(ids)))


def test_blocks_that_a_backbone_skips_count_too():
    local = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 3}
    blocks = backbone(attention={"parts": [*INTERLEAVED, local], "num_local_layers": 1}).blocks
    assert [type(part).__name__ for part in blocks[0].attention.parts] == ["LocalAttention"]
    assert [part.layer_index for part in blocks[1].attention.parts[:2]] == [1, 1]


@pytest.mark.parametrize("make", [strided, lambda: fixed(4, heads="merged", num_groups=2)])
def test_a_graph_takes_one_attention_mask_for_all_heads_without_knowing_that_it_is_one(make):
    tf = pytest.importorskip("tensorflow")
    layer, mask = make(), np.random.default_rng(1).random((2, 1, 12, 12)) < 0.7
    layer.build(X.shape)
    signature = [tf.TensorSpec((None, None, SIZE)), tf.TensorSpec((None,) * 4, "bool")]
    graph = tf.function(lambda x, mask: layer(x, attention_mask=mask, use_causal_mask=True), input_signature=signature)
    expected = to_numpy(layer(X, attention_mask=mask, use_causal_mask=True))
    np.testing.assert_allclose(graph(X, mask), expected, rtol=0, atol=2e-6)


def test_a_mixed_attention_has_the_heads_of_both():
    layer = MixedAttention([strided(3), fixed(2)])
    expected = [near_and_far(strided)[part] for part in (0, 0, 1)] + near_and_far(fixed)
    np.testing.assert_array_equal(pattern(layer), expected)
    with_random_weights(layer)
    _, weights = layer(X, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(to_numpy(weights)[0] > 0, expected)
