"""Behaviors that the tests of Keras check for its attention layers, by the rows of docs/keras_attention.md.

Keras's tests are read for what they check; the tests here are written anew. Other rows are tested for all layers,
mostly in test_errors.py and test_contract_results.py.
"""

import itertools
import re

import keras
import numpy as np
import pytest

from tests.contracts import normal, to_numpy
from tests.draws import first
from tests.pages import DOCS
from tf_sparse_attention.layers import DenseAttention, LocalAttention

SIZES = {
    "MultiHeadAttention": {"num_heads": 4, "key_dim": 4},
    "GroupQueryAttention": {"num_query_heads": 4, "head_dim": 4, "num_key_value_heads": 2},
}


def make_keras(kind, **options):
    return getattr(keras.layers, kind)(**SIZES[kind], **options)


def make_own(kind, **options):
    """Return our layer, of 4 heads of 4 channels: dense, or local if it has a window."""
    layer = LocalAttention if options.get("sliding_window") else DenseAttention
    return layer(4, 4, num_key_value_heads=SIZES[kind].get("num_key_value_heads"), **options)


def make_pair(kind, *shapes, **options):
    """Return a layer of Keras and ours, built for inputs of some shapes, with the same random weights."""
    theirs, own = make_keras(kind, **options), make_own(kind, **options)
    for layer in (theirs, own):
        layer.build(*shapes)
    random_weights = [normal(*weight.shape, seed=seed) for seed, weight in enumerate(theirs.get_weights())]
    theirs.set_weights(random_weights)
    own.set_weights(theirs.get_weights())
    return theirs, own


def assert_same(theirs, own, *inputs, tolerance=1e-5, **call):
    expected, found = (keras.tree.flatten(to_numpy(layer(*inputs, **call))) for layer in (theirs, own))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_every_test_is_a_row_of_the_page():
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "keras_attention.md").read_text(encoding="utf-8"), re.MULTILINE)
    own = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert own - {"every_test_is_a_row_of_the_page"} <= set(rows)


# Weights, configs and files.


def test_from_config():
    for built, (kind, options) in itertools.product([False, True], OPTIONS[:3]):
        theirs = make_keras(kind, **options, name="attention", kernel_initializer="he_normal", dropout=0.25, seed=3)
        if built:
            theirs.build((2, 5, 8), (2, 5, 8))
        config = theirs.get_config()
        own = type(make_own(kind, **options)).from_config(config)
        found = own.get_config()
        shared = set(config) & set(found) - {"attention_axes"}
        assert {name: found[name] for name in shared} == {name: config[name] for name in shared}
        assert found["attention_axes"] == ((1,) if built else None)
        assert type(own).from_config(found).get_config() == found
    # Keras raises a TypeError of its own around the error of a constructor.
    with pytest.raises(TypeError, match="`sliding_window` must be None with DenseAttention"):
        DenseAttention.from_config(make_keras("MultiHeadAttention", sliding_window=3).get_config())


# Keras's tests of both layers, or of MultiHeadAttention alone.


def test_sliding_window_serialization():
    config = LocalAttention(2, 4, sliding_window=5).get_config()
    assert config["window"] == 5
    assert "sliding_window" not in config
    assert LocalAttention.from_config(config).window == 5


def test_causal_only_skipped_for_subclass():
    seen = []

    class Sub(DenseAttention):
        def compute_attention(self, heads, masks, causal, training=False, return_weights=False):
            seen.append((causal, masks.attention_mask is None))
            return super().compute_attention(heads, masks, causal, training, return_weights)

    x, layer = normal(2, 5, 8), Sub(2, 4)
    layer(x, x, use_causal_mask=True)
    layer(x, x, attention_mask=np.ones((1, 5, 5), bool))
    assert seen == [(True, True), (False, False)]


def test_mha_constraints(subtests):
    for name in ["kernel", "bias"]:
        with subtests.test(name=name):
            layer = make_own("MultiHeadAttention", use_gate=True, **{f"{name}_constraint": "non_neg"})
            layer.build((1, 2, 2), (1, 2, 2))
            for weight in layer.trainable_weights:
                expected = keras.constraints.NonNeg if weight.name == name else type(None)
                assert isinstance(weight.constraint, expected)


def test_dtype_policy_map():
    policies = keras.dtype_policies.DTypePolicyMap()
    for name in ("query", "key", "value"):
        policies[f"attention/{name}"] = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    layer = make_own("MultiHeadAttention", use_bias=False, dtype=policies, name="attention")
    layer.build((1, 2, 2), (1, 2, 2))
    denses = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    assert [dense.kernel.dtype for dense in denses] == ["int8", "int8", "int8", "float32"]


OPTIONS = [
    ("MultiHeadAttention", {"use_bias": False, "use_gate": True, "value_dim": 3}),
    ("MultiHeadAttention", {"use_gate": True, "output_shape": (2, 3)}),
    ("MultiHeadAttention", {"use_gate": True, "sliding_window": 3}),
    ("GroupQueryAttention", {"use_bias": False, "use_gate": True}),
    ("GroupQueryAttention", {"sliding_window": 3}),
]


def test_set_weights():
    query, value = normal(2, 6, 4), normal(2, 5, 4, seed=1)
    for kind, options in OPTIONS:
        theirs, own = make_pair(kind, query.shape, value.shape, **options)  # as many features as heads and channels
        assert [weight.shape for weight in own.weights] == [weight.shape for weight in theirs.weights], options
        assert_same(theirs, own, query, value, tolerance=1e-4)


class Holder(keras.Model):
    """A model that has an attention layer as an attribute, under which Keras saves it."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def call(self, x):
        return self.attention(x, x)


FILES = [("MultiHeadAttention", {"use_gate": True, "use_bias": False, "dropout": 0.5, "sliding_window": 3})]


@pytest.mark.parametrize(("kind", "options"), first([*FILES, ("GroupQueryAttention", {})], 1))
def test_load_weights(kind, options, tmp_path):
    file, x, inputs = tmp_path / "model.weights.h5", normal(2, 5, 8), keras.Input((5, 8))

    def functional(make, name):
        return keras.Model(inputs, make(kind, name=name, **options)(inputs, inputs))

    theirs, own = functional(make_keras, "first"), functional(make_own, "first")
    theirs.save_weights(file)
    own.load_weights(file)
    assert_same(theirs, own, x)
    with pytest.raises(ValueError, match=r"named 'another'.*`copy_projections\(keras_layer\)`"):
        functional(make_own, "another").load_weights(file)
    theirs, own = (Holder(make(kind, **options)) for make in (make_keras, make_own))  # whose names differ
    for model in (theirs, own):
        model(x)
    theirs.save_weights(file)
    own.load_weights(file)
    assert_same(theirs, own, x)


def test_high_dim_attention():
    query, value = normal(2, 3, 4, 8), normal(2, 3, 2, 8, seed=1)
    theirs, own = make_pair("MultiHeadAttention", query.shape, value.shape, attention_axes=(1, 2))
    mask = np.random.default_rng(0).random((2, 3, 4, 3, 2)) < 0.7
    expected = theirs(query, value, attention_mask=mask)
    found = own(query, value, attention_mask=mask.reshape(2, 12, 6))  # the pixels are the positions
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-4)
    with pytest.raises(ValueError, match="`attention_axes`"):
        DenseAttention(2, 4, attention_axes=1)(query, value)
    with pytest.raises(ValueError, match=r"`query` must have shape .* Received: query of shape \(2, 1, 3, 4, 8\)"):
        DenseAttention(2, 4)(query[:, None])


def test_initializer():
    initializer = keras.initializers.TruncatedNormal(stddev=0.02, seed=None)
    layer = make_own("GroupQueryAttention", use_gate=True, kernel_initializer=initializer)
    layer.build((2, 4, 16), (2, 4, 16))
    kernels = [to_numpy(weight).ravel()[:32] for weight in layer.trainable_weights if weight.name == "kernel"]
    assert len(kernels) == 5
    for one, other in itertools.combinations(kernels, 2):
        assert not np.allclose(one, other)
