"""Attention layers in every floating dtype: finite, and of the dtypes they promise."""

import keras
import numpy as np
import pytest

from tests.contracts import SIZE, built, every_layer, gradients, normal, to_numpy

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")

DTYPES = {  # policy: dtype of outputs, weights, centroids
    "mixed_bfloat16": ("bfloat16", "float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16", "float32"),
    "mixed_float16": ("float16", "float32", "float32"),
    "float64": ("float64", "float64", "float64"),
}


@every_layer(slow=True)
@pytest.mark.parametrize("policy", DTYPES)
def test_outputs_weights_and_state_have_the_promised_dtypes(maker, policy):
    layer, x = built(maker, dtype=policy, dropout=0.2), normal(2, 13, SIZE)
    compute, variable, state = DTYPES[policy]
    mask = np.arange(13) < np.array([[13], [6]])
    results = layer(x, use_causal_mask=maker.causal, training=True, query_mask=mask, return_attention_scores=True)
    assert [keras.backend.standardize_dtype(result.dtype) for result in results] == [compute, compute]
    spans = {weight.dtype for weight in layer.trainable_weights if weight.path.endswith("span/fraction")}
    assert {weight.dtype for weight in layer.trainable_weights} - spans <= {variable} and spans <= {state}
    assert {weight.dtype for weight in layer.non_trainable_weights} <= {state, "int32"}
    symbolic = layer(keras.Input((None, SIZE)), return_attention_scores=True)
    assert [tensor.dtype for tensor in symbolic] == [compute, compute]
    for result in to_numpy(results):
        assert np.all(np.isfinite(result))


@every_layer(slow=True)
def test_half_precision_stays_finite_and_near_single_precision(maker):
    x = normal(2, 13, SIZE)
    layers = [built(maker, dtype=policy, use_bias=False) for policy in ("float32", "mixed_bfloat16")]
    mask = np.ones((2, 13, 13), bool)
    mask[:, 5] = False  # a query that may see nothing
    if not maker.pairs:
        mask = np.ones((2, 1, 13), bool)
        mask[:, :, 3] = False
    expected, half = (maker.call(layer, x, attention_mask=mask) for layer in layers)
    assert maker.vectors or not maker.pairs or np.all(half[:, 5] == 0)
    # Rounding to 8 bits may move a token to another cluster, which changes its row and those that saw it.
    unmoved = np.abs(half - expected).max(-1) < 0.1
    assert unmoved.mean() > 0.6
    large = gradients(layers[1], maker, 100 * x, training=True)
    assert all(np.all(np.isfinite(gradient)) for gradient in large)
