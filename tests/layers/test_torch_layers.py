"""Layers and a small model on the torch backend, where torch is installed: forward, backward, training."""

import importlib.util
import json

import numpy as np
import pytest

CODE = """
import json, os, sys
import keras, numpy as np
from tests.cases import CASES
from tests.contracts import SIZE, normal, to_numpy, with_random_weights

def result(case):
    layer = case.make()
    layer.build((2, 13, SIZE))
    with_random_weights(layer)
    rng = np.random.default_rng(5)
    for weight in layer.non_trainable_weights:  # centroids, which each backend draws otherwise
        if "float" in weight.dtype and len(weight.shape) > 1:
            weight.assign(rng.standard_normal(weight.shape))
    output = layer(keras.ops.convert_to_tensor(normal(2, 13, SIZE)), use_causal_mask=case.causal)
    if keras.backend.backend() == "torch":
        keras.ops.sum(output**2).backward()
        gradients = {weight.path: weight.value.grad for weight in layer.trainable_weights}
        assert all(x is not None and bool(x.isfinite().all()) for x in gradients.values()), gradients
    return to_numpy(output).tolist()

print(json.dumps({name: result(case) for name, case in CASES.items()}))
"""
FIT = """
import keras, numpy as np
import tf_sparse_attention as tsa

HEADS = {"num_heads": 4, "num_key_value_heads": 2, "key_dim": 8}
PARTS = [
    [{"layer": "LocalAttention", "window": 6, "position": "rotary", "use_sink": True, "use_gate": True, **HEADS}],
    [{"layer": "DenseAttention", "use_query_key_norm": True, "logit_soft_cap": 30.0, **HEADS}],
]
keras.utils.set_random_seed(0)
model = tsa.models.LanguageModel(
    tsa.models.Backbone(20, 2, 16, PARTS, intermediate_dim=32, activation="swiglu", norm="pre_and_post_rms", seed=0)
)
model.compile(keras.optimizers.Adam(0.01), loss=tsa.models.language_model_loss())
ids = np.tile(np.arange(1, 17), (4, 2))
losses = model.fit(ids, np.roll(ids, -1, 1), epochs=10, verbose=0).history["loss"]
assert losses[-1] < 0.7 * losses[0], losses
_, cache = model.prefill(ids[:1, :20], model.init_cache(1, 24))
logits, _ = model.decode(ids[:1, 20:21], cache, 20)
wanted = keras.ops.convert_to_numpy(model(ids[:1, :21]))[:, -1]
assert np.allclose(keras.ops.convert_to_numpy(logits)[:, 0], wanted, atol=1e-4)
print(keras.backend.backend())
"""
DRAWN = ("hash_buckets", "hash_buckets_separate")  # whose planes each backend draws otherwise, from the same seed
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, which is not installed"),
]


def test_layers_of_all_patterns_equal_tensorflow_and_have_gradients(run_python):
    torch, tensorflow = (
        json.loads(run_python(CODE, KERAS_BACKEND=backend).splitlines()[-1]) for backend in ("torch", "tensorflow")
    )
    for name in sorted(set(torch) - {*DRAWN}):
        np.testing.assert_allclose(torch[name], tensorflow[name], atol=1e-5, err_msg=name)


def test_a_model_of_two_layers_is_trained_and_decodes_on_torch(run_python):
    assert "torch" in run_python(FIT, KERAS_BACKEND="torch")
