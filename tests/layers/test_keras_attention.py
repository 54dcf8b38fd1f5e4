"""Behaviors that the tests of Keras check for its attention layers: one test per row of docs/keras_attention.md.

Keras's tests are read for what they check; the tests here are written anew.
"""

import itertools
import re

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import normal, to_numpy
from tests.pages import DOCS
from tf_sparse_attention.layers import DenseAttention, LocalAttention
from tf_sparse_attention.ops.masks import TokenMasks

KERAS = {"MultiHeadAttention": keras.layers.MultiHeadAttention, "GroupQueryAttention": keras.layers.GroupQueryAttention}
IDS, SOURCE_IDS = (
    np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]]),
    np.array([[5, 4, 0], [3, 0, 0], [2, 1, 1]]),
)


def heads_of(kind):
    """Return the number of heads as our layers take it, for 4 heads of 4 channels of one of Keras's layers."""
    return {"num_heads": 4, "key_dim": 4} | ({} if kind == "MultiHeadAttention" else {"num_key_value_heads": 2})


def make_keras(kind, **options):
    sizes = heads_of(kind)
    if kind == "GroupQueryAttention":
        sizes = {"num_query_heads": 4, "head_dim": 4, "num_key_value_heads": 2}
    return KERAS[kind](**sizes, **options)


def make_own(kind, **options):
    """Return our layer: dense, or local if it has a window."""
    layer = LocalAttention if options.get("sliding_window") else DenseAttention
    return layer(**heads_of(kind), **options)


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
    for expected, found in zip(as_tuple(theirs(*inputs, **call)), as_tuple(own(*inputs, **call)), strict=True):
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), rtol=tolerance, atol=tolerance)


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def embedded(ids):
    """Return vectors that carry the mask of padding, zero, and the mask."""
    vectors = keras.layers.Embedding(8, 8, mask_zero=True)(ids)
    return vectors, ids != 0


def test_every_row_of_the_page_has_a_test():
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "keras_attention.md").read_text(encoding="utf-8"), re.MULTILINE)
    own = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert len(rows) == len(set(rows))
    assert set(rows) == own - {"every_row_of_the_page_has_a_test"}


# Weights, configs and files.

OPTIONS = [
    ("MultiHeadAttention", {}),
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


def test_from_config():
    for built, (kind, options) in itertools.product([False, True], OPTIONS[:4]):
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
        assert getattr(own, "window", None) == options.get("sliding_window")
    # Keras raises a TypeError of its own around the error of a constructor.
    with pytest.raises(TypeError, match="`sliding_window` must be None with DenseAttention"):
        DenseAttention.from_config(make_keras("MultiHeadAttention", sliding_window=3).get_config())


def model_of(make, names):
    """Return a functional model with an attention layer of each name and a dense layer."""
    x = inputs = keras.Input((5, 8))
    for name in names:
        x = make(name=name)(x, x)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


class Holder(keras.Model):
    """A model that has an attention layer as an attribute, under which Keras saves it."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def call(self, x):
        return self.attention(x, x)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("MultiHeadAttention", {"use_gate": True, "use_bias": False, "dropout": 0.5, "sliding_window": 3}),
        ("GroupQueryAttention", {}),
    ],
)
def test_load_weights(kind, options, tmp_path):
    file, x, names = tmp_path / "model.weights.h5", normal(2, 5, 8), ["first", "second"]

    def make_theirs(name=None):
        return make_keras(kind, name=name, **options)

    def make_ours(name=None):
        return make_own(kind, name=name, **options)

    theirs, own = model_of(make_theirs, names), model_of(make_ours, names)
    theirs.save_weights(file)
    own.load_weights(file)
    assert_same(theirs, own, x)
    for names in (["first", "another"], ["second", "second_1"]):
        with pytest.raises(ValueError, match=r"named '(another|second_1)'.*`copy_projections\(keras_layer\)`"):
            model_of(make_ours, names).load_weights(file)
    theirs, own = Holder(make_theirs()), Holder(make_ours())  # whose names differ
    for model in (theirs, own):
        model(x)
    theirs.save_weights(file)
    own.load_weights(file)
    assert_same(theirs, own, x)


# Keras's tests of both layers, or of MultiHeadAttention alone.


def test_basics(subtests):
    for kind, use_gate in itertools.product(KERAS, [False, True]):
        with subtests.test(kind=kind, use_gate=use_gate):
            for options in ({}, {"use_bias": False, "dropout": 0.5}):
                layer = make_own(kind, use_gate=use_gate, **options)
                assert tuple(layer(normal(2, 8, 16), normal(2, 4, 16)).shape) == (2, 8, 16)
                assert len(layer.trainable_weights) == (4 + use_gate) * (1 if options else 2)
                assert not layer.non_trainable_weights
                assert not layer.losses
                assert len(layer.non_trainable_variables) == bool(options)  # the state of the seeds
                assert layer.supports_masking


def test_basics_with_flash_attention():
    for value in (None, False):
        assert "flash_attention" not in DenseAttention(2, 4, flash_attention=value).get_config()


def test_flash_attention_with_errors():
    for layer in (DenseAttention, LocalAttention):
        with pytest.raises(ValueError, match="`flash_attention`"):
            layer(2, 4, flash_attention=True)


def test_high_dim_attention():
    query, value = normal(2, 3, 4, 8), normal(2, 3, 2, 8, seed=1)
    for options in ({}, {"use_gate": True}, {"attention_axes": (1, 2)}):
        theirs, own = make_pair("MultiHeadAttention", query.shape, value.shape, **options)
        mask = np.random.default_rng(0).random((2, 3, 4, 3, 2)) < 0.7
        expected = theirs(query, value, attention_mask=mask)
        found = own(query, value, attention_mask=mask.reshape(2, 12, 6))  # the pixels are the positions
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-4)
    with pytest.raises(ValueError, match="`attention_axes`"):
        DenseAttention(2, 4, attention_axes=1)(query, value)
    with pytest.raises(ValueError, match="`attention_axes`"):
        DenseAttention(2, 4, attention_axes=2)
    with pytest.raises(ValueError, match=r"`query` must have shape .* Received: query of shape \(2, 1, 3, 4, 8\)"):
        DenseAttention(2, 4)(query[:, None])


def test_attention_axes_negative_indexing():
    for axes in (-2, (-3, -2)):
        with pytest.raises(ValueError, match="`attention_axes`"):
            DenseAttention(2, 4, attention_axes=axes)


def test_compute_output_shape(subtests):
    for kind, key_features in itertools.product(KERAS, [None, 3]):
        with subtests.test(kind=kind, key_features=key_features):
            shapes = (7, 4, 8), (7, 2, 8), None if key_features is None else (7, 2, key_features)
            output_shapes = (None, 6, (3, 4)) if kind == "MultiHeadAttention" else (None,)
            for output_shape in output_shapes:
                layer = make_own(kind, output_shape=output_shape)
                output = layer(*(None if sizes is None else normal(*sizes) for sizes in shapes))
                assert layer.compute_output_shape(*shapes) == tuple(output.shape)
                assert layer.compute_output_shape(*map(list, filter(None, shapes))) == tuple(output.shape)
            layer = DenseAttention(2, 4)
            assert layer.compute_output_shape((7, 4, 2, 8), (7, 4, 3, 7), (7, 4, 3, 8)) == (7, 4, 2, 8)
            with pytest.raises(ValueError, match=r"`query` must have shape"):
                layer.compute_output_shape((7, 4, 2, 3, 8))


def test_shape_mismatch_error():
    shapes = (2, 4, 8), (2, 2, 8), (2, 1, 7)
    for layer in (DenseAttention(4, 2), LocalAttention(4, 2, window=3)):
        for call in (
            lambda layer=layer: layer.compute_output_shape(*shapes),
            lambda layer=layer: layer.build(*shapes),
            lambda layer=layer: layer(*(normal(*sizes) for sizes in shapes)),
            lambda layer=layer: layer(*(keras.Input(sizes[1:]) for sizes in shapes)),
        ):
            with pytest.raises(ValueError, match="`key` and `value`"):
                call()
        layer.build((2, 4, 8), (2, 2, 8), (2, 2, 7))
        with pytest.raises(ValueError, match="`key` and `value`"):
            layer(*(keras.Input(sizes[1:]) for sizes in shapes))
    assert DenseAttention(4, 2).compute_output_shape((2, 4, 8), (2, 2, 7)) == (2, 4, 8)


def test_invalid_scalar_args_rejected():
    for name, value in itertools.product(("num_heads", "key_dim", "value_dim"), (0, -2, 1.5)):
        with pytest.raises(ValueError, match=f"^`{name}`"):
            DenseAttention(**{"num_heads": 4, "key_dim": 4, name: value})
    assert DenseAttention(4, 5, value_dim=None).value_dim == 5


def test_initializer(subtests):
    initializer = keras.initializers.TruncatedNormal(stddev=0.02, seed=None)
    for kind in KERAS:
        with subtests.test(kind=kind):
            layer = make_own(kind, use_gate=True, kernel_initializer=initializer)
            layer.build((2, 4, 16), (2, 4, 16))
            kernels = [to_numpy(weight).ravel()[:32] for weight in layer.trainable_weights if weight.name == "kernel"]
            assert len(kernels) == 5
            for first, second in itertools.combinations(kernels, 2):
                assert not np.allclose(first, second)


def test_query_mask_propagation(subtests):
    for kind, use_gate in itertools.product(KERAS, [False, True]):
        with subtests.test(kind=kind, use_gate=use_gate):
            query, mask = embedded(IDS)
            output = make_own(kind, use_gate=use_gate)(query, normal(3, 3, 8))
            np.testing.assert_array_equal(to_numpy(output._keras_mask), mask)


@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask attached:UserWarning")  # in GroupQueryAttention
@pytest.mark.parametrize(
    ("kind", "causal", "use_gate"), [("MultiHeadAttention", True, True), ("GroupQueryAttention", False, False)]
)
def test_masking(kind, causal, use_gate):
    (query, query_mask), (value, value_mask) = embedded(IDS), embedded(SOURCE_IDS)
    theirs, own = make_pair(kind, query.shape, value.shape, use_gate=use_gate)
    pairs = query_mask[:, :, None] & value_mask[:, None, :]
    if causal:
        pairs = pairs & np.tril(np.ones((5, 3), bool))
    plain = [ops.copy(x) for x in (query, value)]
    output = to_numpy(own(query, value, use_causal_mask=causal))
    np.testing.assert_allclose(output, to_numpy(own(*plain, attention_mask=pairs)), atol=1e-5)
    np.testing.assert_allclose(output, to_numpy(own(*plain, attention_mask=pairs.astype("int32"))), atol=1e-5)
    expected = to_numpy(theirs(query, value, use_causal_mask=causal))
    np.testing.assert_allclose(output[query_mask], expected[query_mask], atol=1e-4)
    bias = to_numpy(own.output_dense.bias)
    np.testing.assert_array_equal(output[~query_mask], np.broadcast_to(bias, output[~query_mask].shape))


def test_masking_with_different_shapes():
    x, mask = normal(2, 5, 8), np.tril(np.ones((5, 5), bool))
    theirs, own = make_pair("MultiHeadAttention", x.shape, x.shape)
    masks = [mask, np.tile(mask, (2, 1, 1)), np.tile(mask, (2, 4, 1, 1))]
    for given in masks:
        assert_same(theirs, own, x, x, attention_mask=given)
    with pytest.raises(ValueError, match=r"`attention_mask` must be boolean"):
        own(x, x, attention_mask=masks[1].astype("float32"))


@pytest.mark.filterwarnings("error")
def test_no_warning_with_keras_mask():
    make_own("MultiHeadAttention")(embedded(IDS)[0], embedded(SOURCE_IDS)[0])


def test_sliding_window(subtests):
    for kind, causal in itertools.product(KERAS, [False, True]):
        with subtests.test(kind=kind, causal=causal):
            x = normal(1, 6, 8)
            theirs, own = make_pair(kind, x.shape, x.shape, sliding_window=3)
            assert_same(theirs, own, x, x, use_causal_mask=causal, return_attention_scores=True)
            distances = np.subtract.outer(np.arange(6), np.arange(6))
            seen = (distances < 3) & (distances > (-1 if causal else -3))
            scores = to_numpy(own(x, x, use_causal_mask=causal, return_attention_scores=True)[1])
            np.testing.assert_array_equal(scores > 0, np.broadcast_to(seen, scores.shape))


def test_sliding_window_validation():
    for value in (0, -3, 2.5):
        with pytest.raises(ValueError, match="`sliding_window`"):
            LocalAttention(2, 4, sliding_window=value)


def test_sliding_window_serialization():
    config = LocalAttention(2, 4, sliding_window=5).get_config()
    assert config["window"] == 5
    assert "sliding_window" not in config
    assert LocalAttention.from_config(config).window == 5


def test_causal_only_fast_path():
    x, causal = normal(2, 5, 8), np.tril(np.ones((1, 5, 5), bool))
    theirs, own = make_pair("MultiHeadAttention", x.shape, x.shape)
    assert_same(theirs, own, x, x, use_causal_mask=True)
    np.testing.assert_allclose(
        to_numpy(own(x, x, use_causal_mask=True)), to_numpy(own(x, x, attention_mask=causal)), atol=1e-5
    )


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


def test_causal_only_with_other_mask_falls_back():
    x, causal, pairs = normal(2, 5, 8), np.tril(np.ones((2, 5, 5), bool)), np.ones((2, 5, 5), bool)
    pairs[:, 3, 1] = False
    theirs, own = make_pair("MultiHeadAttention", x.shape, x.shape)
    assert_same(theirs, own, x, x, attention_mask=pairs, use_causal_mask=True)
    both = to_numpy(own(x, x, attention_mask=pairs, use_causal_mask=True))
    np.testing.assert_allclose(both, to_numpy(own(x, x, attention_mask=pairs & causal)), atol=1e-5)


def test_causal_only_masks_when_fused_path_disabled(subtests):
    for kind, dropout in itertools.product(KERAS, [0.0, 0.5]):
        with subtests.test(kind=kind, dropout=dropout):
            x, layer = normal(1, 6, 8), make_own(kind, dropout=dropout)
            output, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True, training=False)
            assert not np.triu(to_numpy(scores), 1).any()
            explicit = layer(x, x, attention_mask=np.tril(np.ones((1, 6, 6), bool)), training=False)
            np.testing.assert_allclose(to_numpy(output), to_numpy(explicit), atol=1e-5)


def test_causal_only_masks_non_4d_inputs():
    scores = DenseAttention(2, 4)(normal(1, 3, 4, 8), use_causal_mask=True, return_attention_scores=True)[1]
    assert tuple(scores.shape) == (1, 2, 12, 12)
    assert not np.triu(to_numpy(scores), 1).any()


def test_compute_attention_combines_causal_and_explicit_mask(subtests):
    for return_weights in [False, True]:
        with subtests.test(return_weights=return_weights):
            layer, pairs = DenseAttention(2, 4), np.ones((1, 1, 5, 5), bool)
            layer.build((1, 5, 8))
            pairs[..., 3, 1] = False
            heads = layer.project(normal(1, 5, 8))
            both, merged = (
                layer.compute_attention(heads, TokenMasks(attention_mask=mask), causal, return_weights=return_weights)
                for mask, causal in ((pairs, True), (pairs & np.tril(np.ones((5, 5), bool)), False))
            )
            np.testing.assert_allclose(to_numpy(both[0]), to_numpy(merged[0]), atol=1e-5)


def test_correctness(subtests):
    for kind, dtype in itertools.product(KERAS, ["float32", "float16"]):
        with subtests.test(kind=kind, dtype=dtype):
            layer = make_own(kind, dtype=dtype, use_bias=False)
            tokens = np.eye(4)[None]
            layer.build(tokens.shape, tokens.shape)
            identity = [
                np.repeat(np.eye(4)[:, None], heads, axis=1) for heads in (4, layer.num_key_heads, layer.num_key_heads)
            ]
            layer.set_weights([*identity, np.repeat(np.eye(4)[None], 4, axis=0)])
            values = np.arange(16.0).reshape(1, 4, 4) / 16
            output, scores = layer(tokens, values, tokens, return_attention_scores=True)
            # The score of a query's own key is 1 / sqrt(4), of other keys 0: e^0.5 = 1.649 of 4.649 parts.
            expected = np.full((4, 4), 1 / 4.6487) + np.eye(4) * 0.6487 / 4.6487
            np.testing.assert_allclose(to_numpy(scores), np.broadcast_to(expected, (1, 4, 4, 4)), atol=1e-3)
            np.testing.assert_allclose(to_numpy(output)[0], 4 * expected @ values[0], atol=1e-2)  # the sum of 4 heads


def test_mha_constraints(subtests):
    for name in ["kernel", "bias"]:
        with subtests.test(name=name):
            layer = make_own("MultiHeadAttention", use_gate=True, **{f"{name}_constraint": "non_neg"})
            layer.build((1, 2, 2), (1, 2, 2))
            for weight in layer.trainable_weights:
                expected = keras.constraints.NonNeg if weight.name == name else type(None)
                assert isinstance(weight.constraint, expected)


def test_lora(tmp_path):
    inputs, x = keras.Input((5, 8)), normal(2, 5, 8)

    def make_model():
        layer = make_own("MultiHeadAttention", use_bias=False, use_gate=True)
        return keras.Model(inputs, layer(inputs, inputs)), layer

    model, layer = make_model()
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
        dense.enable_lora(2)
    assert (len(layer.trainable_variables), len(layer.non_trainable_variables)) == (8, 3)
    trainer = keras.Model(inputs, model(inputs))  # whose optimizer is in none of the files
    trainer.compile("sgd", "mse", run_eagerly=True)
    trainer.train_on_batch(x, x)
    trained = to_numpy(model(x))
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(keras.saving.load_model(tmp_path / "model.keras")(x)), trained, atol=1e-5)
    model.save_weights(tmp_path / "model.weights.h5")
    plain, _ = make_model()
    plain.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(to_numpy(plain(x)), trained, atol=1e-5)
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(to_numpy(model(x)), trained, atol=1e-5)


def test_symbolic_return_attention_scores(subtests):
    for kind in KERAS:
        with subtests.test(kind=kind):
            layer, query, value = make_own(kind), normal(2, 3, 5), normal(2, 4, 5)
            symbolic = layer(*(keras.Input(batch_shape=x.shape) for x in (query, value)), return_attention_scores=True)
            real = layer(query, value, return_attention_scores=True)
            assert [tuple(x.shape) for x in symbolic] == [tuple(x.shape) for x in real] == [(2, 3, 5), (2, 4, 3, 4)]


def test_dtype_policy_map():
    policies = keras.dtype_policies.DTypePolicyMap()
    for name in ("query", "key", "value"):
        policies[f"attention/{name}"] = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    layer = make_own("MultiHeadAttention", use_bias=False, dtype=policies, name="attention")
    layer.build((1, 2, 2), (1, 2, 2))
    denses = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    assert [dense.kernel.dtype for dense in denses] == ["int8", "int8", "int8", "float32"]


def test_multi_head_attention_output_shape_as_int():
    assert DenseAttention(2, 4, output_shape=8)(normal(2, 4, 16)).shape == (2, 4, 8)


def test_multi_head_attention_output_shape_as_tuple():
    assert DenseAttention(2, 4, output_shape=(8, 3))(normal(2, 4, 16)).shape == (2, 4, 8, 3)


def test_multi_head_attention_output_shape_error():
    with pytest.raises(ValueError, match=r"`output_shape` must be .*Received: output_shape=8\.0\."):
        DenseAttention(2, 4, output_shape=8.0)


def test_quantize_int8(subtests):
    for use_gate in [False, True]:
        with subtests.test(use_gate=use_gate):
            x, layer = normal(2, 5, 8), make_own("MultiHeadAttention", use_bias=False, use_gate=use_gate)
            exact = to_numpy(layer(x, x))
            for sublayer in layer._flatten_layers(include_self=False):
                sublayer.quantize("int8")
            kernels = [weight for weight in layer.weights if weight.name == "kernel"]
            assert [weight.dtype for weight in kernels] == ["int8"] * (4 + use_gate)
            assert np.mean((to_numpy(layer(x, x)) - exact) ** 2) < 1e-2
