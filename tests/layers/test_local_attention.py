"""Local attention: small cases, and equality with the dense layer of Keras."""

import keras
import numpy as np

from tests.contracts import SIZE, assert_close, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import LocalAttention


def averaging_layer(**own):
    """One head without weights to speak of: equal scores, so that the output is the mean of the visible values."""
    layer = LocalAttention(1, 1, use_bias=False, **own)
    layer.build((1, 1, 1))
    layer.set_weights([np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1))])
    return lambda values, **arguments: to_numpy(layer(np.reshape(values, (1, -1, 1)), **arguments))[0, :, 0]


def test_window_counts_the_query_itself():
    mean = averaging_layer(window=2)
    np.testing.assert_allclose(mean([0.0, 2.0, 4.0, 8.0], use_causal_mask=True), [0, 1, 3, 6])
    np.testing.assert_allclose(mean([0.0, 2.0, 4.0, 8.0]), [1, 2, 14 / 3, 6], rtol=1e-6)


def test_numbers_of_blocks_before_and_after_are_options():
    values = np.array([0.0, 6.0, 12.0, 18.0])
    np.testing.assert_allclose(averaging_layer(block_size=1, num_blocks_before=0)(values), values)
    mean = averaging_layer(block_size=1, num_blocks_before=0, num_blocks_after=1)
    np.testing.assert_allclose(mean(values), [3, 9, 15, 18])
    np.testing.assert_allclose(mean(values, use_causal_mask=True), values)


def test_with_a_window_the_block_size_is_only_a_hint():
    layers = [LocalAttention(2, 4, window=5, block_size=size) for size in (1, 7, 256)]
    for layer in layers:
        layer.build((2, 20, SIZE))
        with_random_weights(layer)
    first, *others = (to_numpy(layer(normal(2, 20, SIZE))) for layer in layers)
    for other in others:
        assert_close(other, first, 0)


def test_reach_is_the_largest_distance_seen_and_the_size_of_the_table():
    for own, reach in [
        ({"window": 5}, 4),
        ({"window": 1}, 0),
        ({"block_size": 4}, 7),
        ({"block_size": 4, "num_blocks_before": 0, "num_blocks_after": 2}, 11),
    ]:
        layer = LocalAttention(2, 4, position="relative", **own)
        assert layer.pattern.reach == reach
        rows = np.nonzero(to_numpy(layer.attention_pattern(normal(1, 40, SIZE))))
        assert np.abs(rows[2] - rows[3]).max() == reach
        table = next(weight for weight in layer.weights if weight.name == "relative_key")
        assert table.shape == (2 * max(reach, 1) + 1, 4)


def trained_dense_layer():
    """A trained `keras.layers.MultiHeadAttention`."""
    inputs = keras.Input((None, SIZE))
    dense = keras.layers.MultiHeadAttention(2, 4, value_dim=3, dropout=0.1, name="dense")
    model = keras.Model(inputs, dense(inputs, inputs))
    model.compile("adam", "mse", jit_compile=False)
    model.fit(normal(8, 9, SIZE), normal(8, 9, SIZE, seed=1), epochs=2, verbose=0)
    return dense


def test_weights_of_a_trained_keras_layer_give_its_outputs():
    dense, local = trained_dense_layer(), LocalAttention(2, 4, value_dim=3, window=9)
    x = normal(2, 9, SIZE)
    local.build(x.shape)
    names = [["/".join(weight.path.split("/")[-2:]) for weight in layer.weights] for layer in (local, dense)]
    assert names[0] == names[1]
    local.set_weights(dense.get_weights())
    mask = np.arange(9) < np.array([[9], [5]])
    attention_mask = np.random.default_rng(2).random((2, 2, 9, 9)) < 0.8
    attention_mask |= np.eye(9, dtype=bool)  # Keras attends to everything where there is nothing to attend to
    for arguments in ({}, {"query_mask": mask}, {"attention_mask": attention_mask}, {"key_mask": mask}):
        for causal in (False, True):
            masks = {**arguments, "use_causal_mask": causal, "return_attention_scores": True}
            others = {"key_mask": mask} if "query_mask" in arguments else {}  # in Keras queries mask no keys
            expected = to_numpy(dense(x, x, **masks, **others))
            actual = to_numpy(local(x, **masks))
            rows = mask if "query_mask" in arguments else np.ones_like(mask)
            assert_close(actual[0][rows], expected[0][rows], 1e-5)
            assert_close(actual[1].swapaxes(1, 2)[rows], expected[1].swapaxes(1, 2)[rows], 1e-5)


def test_blocks_of_an_encoder_go_with_those_of_the_decoder_whatever_their_sizes():
    layer = LocalAttention(1, 4, block_size=2, key_block_size=3, num_blocks_before=0)
    seen = layer.attention_pattern(np.zeros((1, 5, 8), "float32"), np.zeros((1, 8, 8), "float32"))
    expected = [[1, 1, 1, 0, 0, 0, 0, 0]] * 2 + [[0, 0, 0, 1, 1, 1, 0, 0]] * 2 + [[0, 0, 0, 0, 0, 0, 1, 1]]
    np.testing.assert_array_equal(seen[0, 0], expected)
