"""Dropout of attention weights: repeatable by seed, scaled, and dependent on positions instead of slots."""

import numpy as np

from tests.ops.attend_numbers import draw, numbers
from tf_sparse_attention.ops.attend import Dropout, attend, attend_heads


def test_a_seed_repeats_the_dropout_and_what_is_kept_is_scaled_up():
    # With the unit matrix as values the output is the weights that were used.
    query, key, value = draw(4, 50, 8), draw(4, 60, 8, seed=1), np.tile(np.eye(60), (4, 1, 1))
    whole = numbers(attend(query, key, value).output)
    first, again, other = (
        attend(query, key, value, dropout=Dropout(0.25, seed), return_weights=True) for seed in (1, 1, 2)
    )
    used = numbers(first.output)
    np.testing.assert_array_equal(used, numbers(again.output))
    assert np.abs(used - numbers(other.output)).max() > 0
    there = used > 0
    assert abs(there.mean() - 0.75) < 0.02  # five standard deviations of 12,000 draws
    np.testing.assert_allclose(used[there], whole[there] / 0.75, rtol=1e-6)
    np.testing.assert_array_equal(numbers(first.weights), whole)  # as in Keras, before dropout


def test_dropout_applies_to_value_biases():
    # Two keys of weight 1/2 each: what is kept counts 1, and both come and go.
    attended = attend(
        np.zeros((1, 1, 200, 1)),
        np.zeros((1, 1, 2, 1)),
        np.array([1.0, 10.0]).reshape(1, 1, 2, 1),
        dropout=Dropout(0.5, 1),
        value_bias=lambda weights: 100 * weights[..., :1],
    )
    seen = {round(x) for x in numbers(attended.output).ravel().tolist()}
    assert seen == {0, 10, 101, 111}


def test_dropout_by_position_does_not_depend_on_slots():
    query, key, value = draw(2, 3, 8, 4), draw(2, 3, 9, 4, seed=1), np.tile(np.eye(9), (2, 3, 1, 1))
    queries, keys = np.tile(np.arange(8, dtype="int32"), (2, 3, 1)), np.tile(np.arange(9, dtype="int32"), (2, 3, 1))
    order, others = np.random.default_rng(0).permutation(8), np.random.default_rng(1).permutation(9)
    dropout = Dropout(0.5, 7)
    used = numbers(attend(query, key, value, dropout=dropout.with_positions(queries, keys)).output)
    moved = attend(
        query[:, :, order],
        key[:, :, others],
        value[:, :, others],
        dropout=dropout.with_positions(queries[..., order], keys[..., others]),
    )
    np.testing.assert_allclose(numbers(moved.output), used[:, :, order], rtol=1e-12)
    whole = numbers(attend(query, key, value).output)
    there = used > 0
    np.testing.assert_allclose(used[there], 2 * whole[there], rtol=1e-6)
    assert len({tuple(row) for row in there.reshape(-1, 9)}) > 40  # rows, heads and batch entries differ


def test_heads_that_share_keys_drop_different_pairs():
    query, key, value = draw(1, 4, 1, 8, 4), draw(1, 2, 1, 9, 4, seed=1), np.tile(np.eye(9), (1, 2, 1, 1, 1))
    queries, keys = (np.tile(np.arange(n, dtype="int32"), (1, 4, 1, 1)) for n in (8, 9))

    def used(key, value, keys):
        dropout = Dropout(0.5, 7).with_positions(queries, keys)
        return numbers(attend_heads(query, key, value, dropout=dropout).output)

    there = used(key, value, keys) > 0
    assert len({head.tobytes() for head in there[0]}) == 4
    moved, order = [np.copy(x) for x in (key, value, keys)], np.random.default_rng(0).permutation(9)
    for x in moved:  # of the second group
        half = x.shape[1] // 2
        x[:, half:] = x[:, half:, :, order]
    np.testing.assert_allclose(used(*moved), used(key, value, keys), rtol=1e-12)
