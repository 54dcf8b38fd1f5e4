"""Layers and models with LoRA and with quantized weights, saved and loaded."""

import keras
import numpy as np
import pytest

from tests import contracts
from tests.cases import CASES
from tests.draws import first
from tf_sparse_attention.models import Backbone, LanguageModel

HEADS = {"num_heads": 2, "num_key_value_heads": 1, "use_gate": True, "use_sink": True, "use_query_key_norm": True}
PARTS = [
    {"layer": "LocalAttention", "key_dim": 8, "window": 6, **HEADS},
    {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 2, "cluster_size": 5},
]
KINDS = first(["mixed", "global_window", "sparse_routed", "fixed", "lsh_separate", "clustered", "native"], 1)
# Keras warns of the layers of a model that have nothing to quantize.
quiet = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")


X = contracts.normal(2, 13, contracts.SIZE, seed=3)


def tokens(seed=0):
    return np.random.default_rng(seed).integers(1, 20, (2, 11))


def reloaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def around(layer, name=None):
    """Return a functional model of a layer, causal if the pattern requires it."""
    inputs, causal = keras.Input((13, contracts.SIZE)), {"use_causal_mask": True} if name == "native" else {}
    return keras.Model(inputs, layer(inputs, **causal))


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_quantized_attention_is_close_and_is_loaded_unchanged(name, tmp_path):
    layer = contracts.with_random_weights(contracts.built(CASES[name]))
    exact = contracts.to_numpy(around(layer, name)(X))
    layer.quantize("int8")
    model = around(layer, name)
    assert {weight.dtype for weight in model.weights if weight.path.endswith("query/kernel")} == {"int8"}
    few_bits = contracts.to_numpy(model(X))
    assert 0 < np.median(np.abs(few_bits - exact)) < 0.05 * np.abs(exact).max()
    loaded = reloaded(reloaded(model, tmp_path), tmp_path)
    assert [weight.path for weight in loaded.weights] == [weight.path for weight in model.weights]
    np.testing.assert_array_equal(contracts.to_numpy(loaded(X)), few_bits)


@pytest.mark.parametrize("name", KINDS)
def test_attention_with_lora_starts_unchanged_and_is_loaded_with_the_sum(name, tmp_path):
    layer = contracts.built(CASES[name])
    before = contracts.to_numpy(around(layer, name)(X))
    layer.enable_lora(2)
    assert layer.trainable_weights
    assert all("lora_kernel" in weight.path for weight in layer.trainable_weights)
    np.testing.assert_array_equal(contracts.to_numpy(around(layer, name)(X)), before)
    contracts.with_random_weights(layer)
    after = contracts.to_numpy(around(layer, name)(X))
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(contracts.to_numpy(reloaded(around(layer, name), tmp_path)(X)), after, atol=1e-5)


@pytest.mark.full
@quiet
@pytest.mark.filterwarnings("ignore:Invalid quantization mode:UserWarning")  # Keras's `Embedding` has no float8
@pytest.mark.parametrize(
    ("mode", "parts", "tie_embeddings"),
    first([("int8", PARTS[:1], True), ("int8", PARTS, False), ("int4", PARTS, True), ("float8", PARTS, True)], 1),
)
def test_a_quantized_language_model_is_loaded_unchanged(mode, parts, tie_embeddings, tmp_path):
    made = Backbone(20, 1, 16, parts, intermediate_dim=12, seed=0, embedding={"dim": 8})
    model = LanguageModel(made, tie_embeddings)
    exact = contracts.to_numpy(model(tokens()))
    model.quantize(mode)
    few_bits = contracts.to_numpy(model(tokens()))
    if mode == "int8":  # the other modes are too coarse for a model as small as this
        assert {weight.dtype for weight in model.weights if weight.path.endswith("query/kernel")} == {"int8"}
        assert 0 < np.median(np.abs(few_bits - exact)) < 0.05 * np.abs(exact).max()
    loaded = reloaded(reloaded(model, tmp_path), tmp_path)
    if mode != "float8":  # its scales are in another order
        assert [weight.path for weight in loaded.weights] == [weight.path for weight in model.weights]
    np.testing.assert_array_equal(contracts.to_numpy(loaded(tokens())), few_bits)


@pytest.mark.full
def test_a_language_model_trains_only_its_lora_kernels(tmp_path):
    model, new = (LanguageModel(Backbone(20, 1, 16, PARTS, intermediate_dim=12, seed=0)) for _ in range(2))
    model.enable_lora(2, lora_alpha=4)
    assert len(model.trainable_weights) == len(PARTS) * 4  # A and B of queries and values
    frozen = [contracts.to_numpy(weight) for weight in model.non_trainable_weights if "kernel" in weight.path]
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    model.train_on_batch(tokens(), tokens(1))
    after = [contracts.to_numpy(weight) for weight in model.non_trainable_weights if "kernel" in weight.path]
    assert all(np.array_equal(*pair) for pair in zip(frozen, after, strict=True))
    model.save_weights(tmp_path / "model.weights.h5")
    new.load_weights(tmp_path / "model.weights.h5")  # the low-rank kernels in the sums
    np.testing.assert_allclose(contracts.to_numpy(new(tokens())), contracts.to_numpy(model(tokens())), atol=1e-5)


def test_wrong_adaptations_are_named():
    layer = CASES["mixed"].make()
    with pytest.raises(ValueError, match="isn't yet built"):
        layer.quantize("int8")
    with pytest.raises(ValueError, match="`target_layer_names`"):
        layer.enable_lora(2)
    layer = contracts.built(CASES["mixed"])
    with pytest.raises(ValueError, match="`mode`"):
        layer.quantize("gptq", config=keras.quantizers.GPTQConfig(dataset=["a"], tokenizer=list))
    with pytest.raises(ValueError, match="`rank`"):
        layer.enable_lora(0)
    layer.enable_lora(2)
    with pytest.raises(ValueError, match="without low-rank kernels"):
        layer.enable_lora(2)
