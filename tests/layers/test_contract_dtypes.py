"""Attention layers in every floating dtype: finite results of the documented dtypes."""

import keras
import numpy as np
import pytest

from tests.cases import every_layer
from tests.contracts import CLOSE, SIZE, assert_close, built, call, compare_with_dense, gradients, normal, to_numpy
from tests.draws import first

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")

DTYPES = {  # policy: dtype of outputs, weights, centroids
    "mixed_bfloat16": ("bfloat16", "float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16", "float32"),
    "mixed_float16": ("float16", "float32", "float32"),
    "float64": ("float64", "float64", "float64"),
}
POLICIES = first(list(DTYPES), 1)


@every_layer(by_default=("all_span", "mixed"))
@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_weights_and_state_have_the_documented_dtypes(case, policy):
    layer, x = built(case, dtype=policy, dropout=0.2), normal(2, 13, SIZE)
    compute, variable, state = DTYPES[policy]
    mask = np.arange(13) < np.array([[13], [6]])
    results = layer(x, use_causal_mask=case.causal, training=True, query_mask=mask, return_attention_scores=True)
    assert [keras.backend.standardize_dtype(result.dtype) for result in results] == [compute, compute]
    # Spans are positions, and sinks join scores, which are in float32 too.
    for weight in layer.trainable_weights:
        assert weight.dtype == (state if weight.path.endswith(("span/fraction", "/sinks")) else variable), weight.path
    assert {weight.dtype for weight in layer.non_trainable_weights} <= {state, "int32"}
    symbolic = layer(keras.Input((None, SIZE)), use_causal_mask=case.causal, return_attention_scores=True)
    assert [tensor.dtype for tensor in symbolic] == [compute, compute]
    for result in to_numpy(results):
        assert np.all(np.isfinite(result))


def with_exact_heads(case, dtype):
    """Return a built layer whose projections make of whole numbers heads that half precision holds exactly.

    Their kernels are multiples of 1/4 and at most 1/2: of 8 numbers in -1, 0, 1 come heads of at most 16 quarters. So
    what chooses groups of tokens, and works in float32, gets the same numbers in both precisions and chooses the same.
    """
    layer, rng = case.make(dtype=dtype, use_bias=False), np.random.default_rng(1)
    layer.build((2, 13, SIZE))
    for weight in layer.trainable_weights:
        weight.assign(rng.integers(-2, 3, weight.shape) / 4)
    return layer


@every_layer(by_default=("improved_clustered", "lsh"))
def test_half_precision_is_close_to_single_precision_in_every_row(case):
    x = np.random.default_rng(0).integers(-1, 2, (2, 13, SIZE)).astype("float32")
    mask = np.ones((2, 13, 13), bool)
    mask[:, 5] = False  # a query that may see nothing
    if not case.pairs:
        mask = np.ones((2, 1, 13), bool)
        mask[:, :, 3] = False
    layers = [with_exact_heads(case, policy) for policy in ("float32", "mixed_bfloat16")]
    expected, half = (call(layer, case, x, attention_mask=mask) for layer in layers)
    assert case.vectors or not case.pairs or np.all(half[:, 5] == 0)
    # Outputs of at most 3, a few roundings of one in 256 on the way. Seen: 0.013.
    assert_close(half, expected, 0.02)


@every_layer(by_default=("nearest",))
def test_gradients_of_large_inputs_are_finite_in_half_precision(case):
    layer, x = built(case, dtype="mixed_bfloat16", use_bias=False), normal(2, 13, SIZE)
    large = gradients(layer, case, 100 * x, training=True)
    assert all(np.all(np.isfinite(gradient)) for gradient in large)


@every_layer(by_default=("sparse_heads",))
def test_double_precision_equals_numpy(case):
    layer, x = built(case, dtype="float64"), normal(2, 13, SIZE).astype("float64")
    turned = any(getattr(part, "position", None) in ("rotary", "alibi") for part in getattr(layer, "parts", [layer]))
    # Angles and slopes are constants in float32.
    compare_with_dense(layer, case, x, tolerance=CLOSE if turned else 1e-13)
