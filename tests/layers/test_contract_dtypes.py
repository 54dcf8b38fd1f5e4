"""Attention layers in every floating dtype: finite, and of the dtypes they promise."""

import keras
import numpy as np
import pytest

from tests.contracts import SIZE, assert_close, built, every_layer, gradients, normal, to_numpy

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


def with_exact_heads(maker, dtype):
    """Returns a built layer whose projections make of whole numbers heads that half precision holds exactly.

    Their kernels are multiples of 1/4 and at most 1/2: of 8 numbers in -1, 0, 1 come heads of at most 16 quarters. So
    what chooses groups of tokens, and works in float32, gets the same numbers in both precisions and chooses the same.
    """
    layer, rng = maker.make(dtype=dtype, use_bias=False), np.random.default_rng(1)
    layer.build((2, 13, SIZE))
    for weight in layer.trainable_weights:
        weight.assign(rng.integers(-2, 3, weight.shape) / 4)
    return layer


@every_layer(slow=True)
def test_half_precision_is_near_single_precision_in_every_row(maker):
    x = np.random.default_rng(0).integers(-1, 2, (2, 13, SIZE)).astype("float32")
    mask = np.ones((2, 13, 13), bool)
    mask[:, 5] = False  # a query that may see nothing
    if not maker.pairs:
        mask = np.ones((2, 1, 13), bool)
        mask[:, :, 3] = False
    layers = [with_exact_heads(maker, policy) for policy in ("float32", "mixed_bfloat16")]
    expected, half = (maker.call(layer, x, attention_mask=mask) for layer in layers)
    assert maker.vectors or not maker.pairs or np.all(half[:, 5] == 0)
    # Outputs of at most 3, a few roundings of one in 256 on the way. Seen: 0.013.
    assert_close(half, expected, 0.02)


@every_layer(slow=True)
def test_gradients_of_large_inputs_are_finite_in_half_precision(maker):
    layer, x = built(maker, dtype="mixed_bfloat16", use_bias=False), normal(2, 13, SIZE)
    large = gradients(layer, maker, 100 * x, training=True)
    assert all(np.all(np.isfinite(gradient)) for gradient in large)
