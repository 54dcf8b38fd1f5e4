"""Layers and small models on the torch backend, where torch is installed: forward, backward, training, text."""

import importlib.util
import json

import numpy as np
import pytest

import tf_sparse_attention as tsa

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
_, cache = model.extend(ids[:1, :20], model.init_cache(1, 24))
logits, _ = model.extend(ids[:1, 20:21], cache, index=20)
wanted = keras.ops.convert_to_numpy(model(ids[:1, :21]))[:, -1]
assert np.allclose(keras.ops.convert_to_numpy(logits)[:, 0], wanted, atol=1e-4)
print(keras.backend.backend())
"""
DRAWN = ("hash_buckets", "hash_buckets_separate")  # whose planes each backend draws otherwise, from the same seed
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, which is not installed"),
]


def on_both_backends(run_python, code, **environment):
    """Return the JSON that code prints with torch and with TensorFlow."""
    backends = ("torch", "tensorflow")
    return [json.loads(run_python(code, KERAS_BACKEND=name, **environment).splitlines()[-1]) for name in backends]


def test_layers_of_all_patterns_equal_tensorflow_and_have_gradients(run_python):
    torch, tensorflow = on_both_backends(run_python, CODE)
    for name in sorted(set(torch) - {*DRAWN}):
        np.testing.assert_allclose(torch[name], tensorflow[name], atol=1e-5, err_msg=name)


def test_a_model_of_two_layers_is_trained_and_decodes_on_torch(run_python):
    assert "torch" in run_python(FIT, KERAS_BACKEND="torch")


TEXTS = """
import json, os, keras, numpy as np
import tf_sparse_attention as tsa

model = keras.saving.load_model(os.environ["MODEL"])
strategies = ["greedy", tsa.generation.Sampling(top_p=0.9), tsa.generation.BeamSearch(num_beams=2)]
prompts = np.array([[3, 4, 5], [6, 7, 8]])
texts = [model.generate(prompts, max_length=9, strategy=strategy, seed=3) for strategy in strategies]
print(json.dumps([[np.asarray(text).tolist() for text in rows] for rows in texts]))
"""


def test_sampled_text_is_that_of_the_other_backends(run_python, tmp_path):
    parts = [
        {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 4},
        {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 2, "cluster_size": 4},
    ]
    tsa.models.LanguageModel(tsa.models.Backbone(20, 1, 16, parts, seed=0)).save(tmp_path / "model.keras")
    found, expected = on_both_backends(run_python, TEXTS, MODEL=str(tmp_path / "model.keras"))
    assert found == expected and len(np.unique(found[1])) > 3  # sampled, and no padding
