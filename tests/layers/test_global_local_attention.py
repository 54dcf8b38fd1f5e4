"""Local attention with global tokens: marks, own projections, short sequences and dropout."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import SIZE, normal
from tests.draws import first
from tf_sparse_attention.layers import GlobalLocalAttention

N, H = 2, 4


def test_short_sequences_may_be_dense():
    layer, dense = GlobalLocalAttention(N, H, window=2, dense_length=6), keras.layers.MultiHeadAttention(N, H)
    dense(normal(2, 6, SIZE), normal(2, 6, SIZE))
    layer.copy_projections(dense)
    for length in (6, 7):
        x, allowed = normal(2, length, SIZE), np.random.default_rng(0).random((2, length, length)) < 0.7
        mask = np.array([[True] * length, [True] * 4 + [False] * (length - 4)])
        segments = np.arange(length)[None].repeat(2, 0) // 3
        found = ops.convert_to_numpy(layer(x, attention_mask=allowed, query_mask=mask, segment_ids=segments))
        allowed &= (segments[:, :, None] == segments[:, None]) & mask[:, None]
        wanted, rows = ops.convert_to_numpy(dense(x, x, attention_mask=allowed)), mask & allowed.any(-1)
        assert np.allclose(found[rows], wanted[rows], atol=1e-5) == (length == 6)


@pytest.mark.parametrize("dense_length", first([0, 12], 1))
def test_dropout_applies_to_global_tokens(dense_length):
    # Values tell the weights to the one global token, 3, and to the far token 9, which that one alone sees.
    sizes = {"value_dim": 2, "output_shape": 2 * N, "window": 2, "dense_length": dense_length, "use_bias": False}
    layer = GlobalLocalAttention(N, H, **sizes, dropout=0.25, seed=0)
    x = normal(60, 12, SIZE)
    x[..., :2] = np.eye(12)[[3, 9]].T
    layer.build(x.shape)
    tells = np.repeat(np.eye(SIZE, 2)[:, None], N, axis=1)
    layer.set_weights([*layer.get_weights()[:2], tells, np.eye(2 * N).reshape(N, 2, 2 * N)])
    marks = np.arange(12)[None] == 3
    whole, dropped = (ops.convert_to_numpy(layer(x, global_mask=marks, training=on)) for on in (False, True))
    for rows, value in ((np.arange(12) != 3, 0), (np.arange(12) == 3, 1)):
        before, after = (results.reshape(60, 12, N, 2)[:, rows, :, value] for results in (whole, dropped))
        kept = after > 0
        np.testing.assert_allclose(after[kept], before[kept] / 0.75, rtol=1e-4)
        assert 0.12 < 1 - kept.mean() < 0.38
