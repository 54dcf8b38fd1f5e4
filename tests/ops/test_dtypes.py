"""Every pattern in every dtype: finite, close to float32, and in the dtype of the values; also in mixed ones."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.ops.compare import differentiate
from tests.ops.plans import Plan, draw, sparse

BASE = {"num_queries": 21, "num_keys": 21, "size": 8, "key_mask": True, "attention_mask": (2, 1, 21, 21)}
PLANS = {
    "local": Plan("local", window=5, **BASE),
    "strided": Plan("strided", stride=4, **BASE),
    "fixed": Plan("fixed", block_size=4, num_summary=2, causal=False, **BASE),
    "nearest": Plan("nearest", shared=True, mask_self=True, **BASE),
    "separate": Plan("nearest", mask_self=True, causal=False, **BASE),
    "chunks": Plan("chunks", shared=True, mask_self=True, num_rounds=2, **BASE),
    "top_k": Plan("top_k", causal="position", mask_self=True, cluster_size=9, **BASE),
}
# In units of the largest number; about twice what was seen.
PRECISION = {"bfloat16": 2e-2, "float16": 2e-3}


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("position", ["relative", "rotary"])
@pytest.mark.parametrize("name", PLANS)
def test_every_dtype_is_finite_and_close_to_float32(name, position, dtype):
    plan = PLANS[name]._replace(position=position)
    inputs, masks, cotangent = draw(plan, seed=2)
    inputs["query"] = inputs["query"] / 2

    def run(dtype):
        cast = {name: ops.cast(x, dtype) for name, x in inputs.items()}
        outputs, gradients = differentiate(lambda x: sparse(plan, x, masks), cast, ops.cast(cotangent, dtype))
        assert keras.backend.standardize_dtype(outputs[0].dtype) == dtype
        assert all(keras.backend.standardize_dtype(x.dtype) == dtype for x in gradients.values())
        found = [outputs[0], *gradients.values()]
        return [ops.convert_to_numpy(ops.cast(x, "float64")) for x in found]

    for low, high in zip(run(dtype), run("float32"), strict=True):
        assert np.isfinite(low).all()
        scale = max(1.0, np.abs(high).max())
        np.testing.assert_allclose(low, high, rtol=0, atol=PRECISION[dtype] * scale)


@pytest.mark.parametrize("name", PLANS)
def test_values_may_have_a_lower_precision_than_queries_and_keys(name):
    # Normalised queries are float32 whatever the policy; the values keep its dtype.
    plan = PLANS[name]._replace(position="relative")
    inputs, masks, _ = draw(plan, seed=0)
    mixed = {name: ops.cast(x, "bfloat16") if name == "value" else x for name, x in inputs.items()}
    whole, low = (sparse(plan, x, masks)[0] for x in (inputs, mixed))
    assert keras.backend.standardize_dtype(low.dtype) == "bfloat16"
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(low, "float32")), ops.convert_to_numpy(whole), rtol=0, atol=0.05
    )
