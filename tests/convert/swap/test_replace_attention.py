"""Dense Keras models made sparse: nodes of graphs, sublayers, lists, dictionaries; what is left, and why."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.convert.swap.swap_models import Block, Classifier, difference, ids, local, mixed, randomized, routed
from tests.convert.swap.swap_models import transformer as make_transformer
from tests.draws import first
from tf_sparse_attention.analysis import assert_causal
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import (
    AllAttention,
    ClusteredAttention,
    GlobalLocalAttention,
    LocalAttention,
    NativeSparseAttention,
    SwappedAttention,
)
from tf_sparse_attention.models import SwappedModel

REPLACED = "MultiHeadAttention by LocalAttention"


def reported(model, make_layer, **options):
    """Return the sparse model and the lines of the report."""
    lines = []
    sparse = replace_attention(model, make_layer, print_fn=lines.append, **options)
    return sparse, "\n".join(lines).split("\n")


def reloaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def vectors(seed=0, length=12):
    return np.random.default_rng(seed).normal(size=(2, length, 16)).astype("float32")


def functional(call, *shapes, dtypes=()):
    """Return a functional model of inputs with shapes, by default one of 12 vectors, with random weights."""
    shapes = shapes or ((12, 16),)
    dtypes = dtypes or ("float32",) * len(shapes)
    inputs = [keras.Input(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return randomized(keras.Model(inputs[0] if len(inputs) == 1 else inputs, call(*inputs)))


def attention(**options):
    return keras.layers.MultiHeadAttention(2, 8, **options)


def assert_same_results(model, sparse, *inputs):
    inputs = inputs[0] if len(inputs) == 1 else list(inputs)
    assert difference(model(inputs), sparse(inputs)) < 1e-5


@pytest.fixture(scope="module")
def transformer():
    """A causal model of one layer."""
    return make_transformer(use_causal_mask=True, num_layers=1)


def test_a_window_as_long_as_the_sequence_gives_the_dense_result_and_shares_no_weight():
    model, tokens = make_transformer(), ids()
    before = ops.convert_to_numpy(model(tokens))
    sparse, lines = reported(model, local())
    assert difference(before, sparse(tokens)) < 1e-5
    assert lines == [f"replaced  attention_{i}: {REPLACED}" for i in (0, 1)]
    for weight in sparse.weights:
        weight.assign(weight + 1.0)
    assert difference(before, model(tokens)) == 0
    assert isinstance(model.get_layer("attention_0"), keras.layers.MultiHeadAttention)


def test_a_failed_replacement_names_the_layer_and_leaves_the_model(transformer):
    def attributes():
        kept = {id(layer): (type(layer), {**vars(layer), "_called": None}) for layer in transformer._flatten_layers()}
        return kept, [id(weight) for weight in transformer.weights]

    before, arrays = attributes(), transformer.get_weights()

    class Failing(LocalAttention):
        def call(self, *args, **kwargs):
            raise RuntimeError("no such call")

    with pytest.raises(ValueError, match=r"(?s)`model` must run .* RuntimeError: .*no such call.*attention_0"):
        replace_attention(transformer, lambda dense: Failing(**arguments_of(dense), window=3))
    assert attributes() == before
    assert all((old == new).all() for old, new in zip(arrays, transformer.get_weights(), strict=True))


def test_padding_by_an_implicit_mask_is_kept(transformer):
    # One layer: Keras's attention takes the mask off its query, so that the next layer of the dense model has none.
    tokens = ids()
    tokens[1, 7:] = 0
    sparse = replace_attention(transformer, local(), print_fn=None)
    kept = np.arange(12) < np.array([[12], [7]])
    assert difference(*(ops.convert_to_numpy(model(tokens))[kept] for model in (transformer, sparse))) < 1e-5


def test_a_swapped_causal_model_is_causal_saved_and_loaded(transformer, tmp_path):
    sparse = replace_attention(transformer, mixed, print_fn=None)
    assert_causal(sparse, sequence_length=12, num_cuts=2, quick=True)
    assert difference(sparse(ids()), reloaded(sparse, tmp_path)(ids())) == 0


def test_explicit_masks_and_returned_weights_are_kept(subtests):
    def call(x, mask):
        return attention(use_bias=False)(x, value=x, attention_mask=mask, return_attention_scores=True)

    allowed = (np.random.default_rng(1).random((2, 12, 12)) < 0.7) | np.eye(12, dtype=bool)
    for dtype in ("bool", "float32"):
        with subtests.test(dtype=dtype):
            model = functional(call, (12, 16), (12, 12), dtypes=("float32", dtype))
            sparse = replace_attention(model, local(), print_fn=None)
            inputs = [vectors(), allowed.astype(dtype)]
            for dense_result, sparse_result in zip(model(inputs), sparse(inputs), strict=True):
                assert difference(dense_result, sparse_result) < 1e-5


@pytest.mark.parametrize("causal", first([True, False], 1))
def test_a_pattern_can_be_told_that_masks_hide_later_positions(causal):
    earlier, calls = np.tril(np.ones((1, 16, 16), dtype=bool)), []

    class Recording(LocalAttention):
        def compute_attention(self, heads, masks, causal, *args):
            calls.append(causal)
            return super().compute_attention(heads, masks, causal, *args)

    def call(tokens):
        x = keras.layers.Embedding(30, 16)(tokens)
        return attention()(x, x, attention_mask=earlier)

    model = functional(call, (16,), dtypes=("int32",))
    sparse = replace_attention(
        model, lambda dense: Recording(**arguments_of(dense), window=4), causal=causal, print_fn=None
    )
    assert_causal(sparse, sequence_length=16, num_cuts=2, quick=True)
    assert set(calls) == {causal}


@pytest.mark.full
def test_models_inside_models_are_replaced_too(tmp_path):
    inner = make_transformer(num_layers=1)

    def call(tokens):
        x = inner(tokens) @ np.ones((30, 16))
        return keras.layers.GlobalAveragePooling1D()(Block()(x))

    model = functional(call, (12,), dtypes=("int32",))
    sparse, lines = reported(model, local())
    assert len(lines) == 2 and lines[0].startswith(f"replaced  {inner.name}.attention_0:")
    assert_same_results(model, sparse, ids())
    assert difference(sparse(ids()), reloaded(sparse, tmp_path)(ids())) == 0


def test_lists_tuples_dictionaries_and_shared_layers_of_a_subclassed_model(tmp_path):
    model = Classifier()
    model.build((None, 12))
    randomized(model)
    model.blocks[0].attention.trainable = model.pools["last"].trainable = False
    sparse, lines = reported(model, local())
    held = ["pools['last']", "more[0][0]", "blocks[0].attention", "blocks[1].attention"]
    assert lines == [f"replaced  {path}: {REPLACED}" for path in held]
    assert_same_results(model, sparse, ids())
    assert len(sparse.weights) == len(model.weights)
    assert len(sparse.trainable_weights) == len(model.trainable_weights) < len(model.weights)
    assert isinstance(sparse, Classifier) and isinstance(sparse.more[0][0], SwappedAttention)
    assert sparse.blocks[0] is sparse.blocks[2]
    assert difference(sparse(ids()), reloaded(sparse, tmp_path)(ids())) == 0


def test_attention_that_is_left_is_reported_with_the_reason():
    def call(x, y):
        x = attention(name="plain")(x, x)
        x = attention(name="declined")(x, x)
        x = attention(name="other")(x, y)
        x = keras.layers.Reshape((3, 4, 16))(x)
        return attention(attention_axes=(1, 2), name="plane")(x, x)

    model = functional(call, (12, 16), (9, 16))
    model.get_layer("plain").trainable = False
    sparse, lines = reported(model, lambda dense: None if dense.name == "declined" else local()(dense))
    assert sorted(lines) == [
        f"replaced  plain: {REPLACED}",
        "skipped   declined: MultiHeadAttention, make_layer returned None",
        "skipped   other: MultiHeadAttention, it attends to another sequence",
        "skipped   plane: MultiHeadAttention, it attends over several axes",
    ]
    assert_same_results(model, sparse, vectors(), vectors(length=9))
    assert len(sparse.trainable_weights) == len(model.trainable_weights)  # the frozen layer stays frozen


def test_grouped_heads_and_gates_are_taken_over():
    def call(x):
        x = attention(use_gate=True, name="gated")(x, x, use_causal_mask=True)
        grouped = keras.layers.GroupQueryAttention(8, 4, 2, use_gate=True, sliding_window=5, name="grouped")
        return grouped(x, x, use_causal_mask=True)

    model = functional(call)
    sparse, lines = reported(model, local())
    assert lines == [
        f"replaced  gated: {REPLACED}",
        "replaced  grouped: GroupedQueryAttention by LocalAttention; LocalAttention with window=5 instead of 12: "
        "its sliding_window is 5",
    ]
    assert_same_results(model, sparse, vectors())


@keras.saving.register_keras_serializable(package="tests")
class Own(keras.Model):
    """A functional model whose class makes its nodes."""

    def __init__(self, **kwargs):
        inputs = keras.Input((12, 16))
        super().__init__(inputs, attention(name="node")(inputs, inputs), **kwargs)

    def get_config(self):
        return {"name": self.name}


class Other(keras.layers.MultiHeadAttention):
    """Attention that may compute something else."""

    def _compute_attention(self, *args, **kwargs):
        return super()._compute_attention(*args, **kwargs)


class Sealed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x, x)


@keras.saving.register_keras_serializable(package="tests")
class Scores(Block):
    """A block that passes its attention an argument that no sparse layer has."""

    def call(self, x):
        return self.norm(x + self.attention(x, x, query_mask=ops.ones(ops.shape(x)[:2], "bool")))


@pytest.mark.full
def test_models_and_layers_that_cannot_be_replaced_are_errors_with_the_reason(transformer, subtests):
    both = attention(name="both")
    quantized = functional(lambda x: attention(name="quantized")(x, x))
    quantized.quantize("int8", filters=lambda layer: layer.name == "quantized" or hasattr(layer, "kernel"))
    sealed = Sealed(attention())
    sealed(np.zeros((1, 12, 16), "float32"))
    one = LocalAttention(2, 8, window=3)
    two_layers = functional(lambda x: attention(name="b")(y := attention(name="a")(x, x), y))
    for message, model, make_layer in [
        ("Other overrides the computation of its base class", functional(lambda x: Other(2, 8)(x, x)), local()),
        ("None for both: one of its calls", functional(lambda x, y: both(both(x, x), y), (12, 16), (9, 16)), local()),
        ("`model` must not be quantized.* with quantized quantized", quantized, local()),
        ("node: MultiHeadAttention, it is a node of a Own", Own(), local()),
        ("reconstructible from its config; Sealed is not", sealed, local()),
        (r"(?s)copy raises TypeError.*'query_mask'.*block\.attention", functional(Scores(name="block")), local()),
        ("no attention found", functional(keras.layers.Dense(3)), local()),
        ("`model` must be a built `keras.Model`", keras.layers.Dense(3), local()),
        ("`model` must be a built `keras.Model`", Classifier(), local()),
        ("`make_layer` must be a function", transformer, 3),
        ("`make_layer` must be a function", transformer, LocalAttention(2, 8)),
        ("`make_layer` must be a function", transformer, LocalAttention),
        ("an attention layer of this library or None", transformer, lambda dense: dense),
        ("a layer that fits attention_0", transformer, lambda dense: LocalAttention(3, 8)),
        ("and have the projections", transformer, lambda dense: LocalAttention(2, 8, use_bias=False)),
        ("make_layer returned None", transformer, lambda dense: None),
        ("a new layer each time.* again, for b", two_layers, lambda dense: one),
        ("can be causal for attention_0", transformer, lambda dense: ClusteredAttention(**arguments_of(dense))),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            replace_attention(model, make_layer)
    plain_config = keras.saving.serialize_keras_object(functional(keras.layers.Dense(3)))
    with pytest.raises(ValueError, match="`config`"):  # a path that the model does not have
        SwappedModel.from_config({"model": plain_config, "attention": {"holder.attentoin": {}}, "omitted": {}})
    own = Own()
    plain = keras.Model(own.inputs, own.outputs)
    assert isinstance(replace_attention(plain, local(), print_fn=None).get_layer("node"), LocalAttention)


@pytest.mark.full
def test_vocabularies_of_preprocessing_layers_and_half_precision_are_kept():
    lookup = keras.layers.IntegerLookup(vocabulary=[7, 3, 5], name="lookup")
    adapted = keras.layers.Normalization(name="norm")
    adapted.adapt(np.arange(64.0).reshape(4, 16))
    inputs = keras.Input((12,), dtype="int64")
    x = adapted(keras.layers.Embedding(8, 16)(lookup(inputs)))
    half = attention(dtype="mixed_bfloat16", name="half")(x, x)
    # `randomized` would change the moments of the normalization.
    model = keras.Model(inputs, [attention()(x, x), ops.cast(half, "float32")])
    tokens = np.random.default_rng(0).choice([3, 5, 7], (2, 12))
    sparse = replace_attention(model, local(), print_fn=None)
    assert sparse.get_layer("half").compute_dtype == "bfloat16"
    (dense_result, dense_half), (sparse_result, sparse_half) = model(tokens), sparse(tokens)
    assert difference(dense_result, sparse_result) < 1e-5
    assert difference(dense_half, sparse_half) < 0.1  # two units of bfloat16 between 4 and 8


def test_arguments_of_are_those_that_both_have():
    dense = keras.layers.MultiHeadAttention(
        4, 8, value_dim=6, dropout=0.1, use_bias=False, output_shape=5, name="dense"
    )
    layer = LocalAttention(**arguments_of(dense), window=3)
    assert (layer.num_heads, layer.key_dim, layer.value_dim, layer.dropout) == (4, 8, 6, 0.1)
    assert (layer.use_bias, layer.name, layer.compute_output_shape((2, 3, 16))) == (False, "dense", (2, 3, 5))
    with pytest.raises(ValueError, match="`attention` must be a"):
        arguments_of(layer)
    # If a window is given, the smaller of two windows.
    dense = keras.layers.MultiHeadAttention(4, 8, sliding_window=5)
    assert "window" not in arguments_of(dense)
    windows = [LocalAttention(**arguments_of(dense, window=given)).window for given in (3, 5, 9)]
    assert windows == [3, 5, 5]
    assert arguments_of(keras.layers.MultiHeadAttention(4, 8), window=9)["window"] == 9
    with pytest.raises(ValueError, match="`window` must be"):
        arguments_of(dense, window=0)


@pytest.mark.full
def test_layers_that_see_beyond_the_own_window_are_reported(subtests):
    def native(dense):
        return NativeSparseAttention(**arguments_of(dense), window=9, block_size=2)

    def with_global(dense):
        return GlobalLocalAttention(**arguments_of(dense), window=1, num_first_global=1)

    def with_persistent(mask_self):
        return lambda dense: AllAttention(**arguments_of(dense), num_persistent=1, window=9, mask_self=mask_self)

    near = functional(lambda x: attention(sliding_window=3, name="near")(x, x))
    causal = functional(lambda x: attention(sliding_window=3, name="near")(x, x, use_causal_mask=True))
    beyond = "sees beyond its window: it may see further than the sliding_window of 3"
    none = "RoutingAttention has no window: it may see further than the sliding_window of 3"
    shorter = "LocalAttention with window=3 instead of 4: its sliding_window is 3"
    for model, make_layer, remark in [
        (near, routed, f"RoutingAttention; {none}"),
        (near, mixed, f"MixedAttention; {shorter}; {none}"),
        (near, with_global, f"GlobalLocalAttention; GlobalLocalAttention {beyond}"),
        (causal, native, f"NativeSparseAttention; NativeSparseAttention {beyond}"),
    ]:
        with subtests.test(remark):
            sparse, lines = reported(model, make_layer)
            assert lines == [f"replaced  near: MultiHeadAttention by {remark}"]
            layer = sparse.layers[-1]
            if make_layer is mixed:
                assert [part.name for part in layer.parts] == ["near", "far"]
    assert layer.window == 9  # not limited, because the layer sees beyond it
    # A window that does not count the query is one less.
    for mask_self, window in [(False, 3), (True, 2)]:
        sparse = replace_attention(near, with_persistent(mask_self), print_fn=None)
        assert sparse.get_layer("near").window == window
    nearest = functional(lambda x: attention(sliding_window=1, name="nearest")(x, x))
    with pytest.raises(ValueError, match=r"sliding_window of 1\. .* nearest with window=9"):
        replace_attention(nearest, with_persistent(True))


@keras.saving.register_keras_serializable(package="tests")
class Forgetful(keras.Model):
    """A functional model of a class of its own whose config has one of five arguments."""

    def __init__(self, units, width=16, activation="relu", use_bias=True, scale=1, **kwargs):
        x = inputs = keras.Input((12, 16))
        x = Block()(keras.layers.Dense(width, activation=activation)(x))
        super().__init__(inputs, keras.layers.Dense(units, use_bias=use_bias)(x) * scale, **kwargs)
        self.activation, self.units, self.width = keras.activations.get(activation), units, width
        self.scale = scale**2

    def get_config(self):
        return {"name": self.name, "width": self.width}


def in_sequence(model):
    return keras.Sequential([keras.Input((12, 16)), model])


@pytest.mark.full
@pytest.mark.parametrize("around", first([in_sequence, lambda model: model], 1))
def test_arguments_that_a_config_omits_are_those_of_the_attributes(around, tmp_path):
    model = randomized(around(Forgetful(5, activation="tanh")))
    sparse = replace_attention(model, local(), print_fn=None)
    assert_same_results(model, sparse, vectors())
    again = reloaded(reloaded(sparse, tmp_path), tmp_path)
    assert difference(sparse(vectors()), again(vectors())) == 0


@keras.saving.register_keras_serializable(package="tests")
class Brief(Block):
    """A block whose config omits its number of heads."""

    def get_config(self):
        return {"name": self.name}


@keras.saving.register_keras_serializable(package="tests")
class Twice(keras.layers.Layer):
    """A layer that holds one block under two names."""

    def __init__(self, block, **kwargs):
        super().__init__(**kwargs)
        self.first = self.second = block

    def build(self, shape):
        if not self.first.built:
            self.first.build(shape)

    def call(self, x):
        return self.second(self.first(x))

    def get_config(self):
        return {"name": self.name, "block": keras.saving.serialize_keras_object(self.first)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["block"]), name=config["name"])


def test_arguments_that_the_config_of_a_shared_layer_omits_are_those_of_its_attributes():
    model = functional(Twice(Brief(num_heads=4)))
    assert_same_results(model, replace_attention(model, local(), print_fn=None), vectors())


@pytest.mark.full
def test_arguments_that_no_attribute_has_are_named(subtests):
    for options, message in [
        ({"use_bias": False}, r"a Forgetful, has layers\[3\]\.bias \(5,\)\."),
        ({"scale": 3}, r"Forgetful is not: its config has no scale\."),
    ]:
        with subtests.test(options=options), pytest.raises(ValueError, match=f"`model` .*{message}"):
            replace_attention(Forgetful(5, **options), local())


@keras.saving.register_keras_serializable(package="tests")
class Pooling(keras.layers.Layer):
    """Attention of a vector to a sequence of the same size, which no name reveals."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.own = attention(), attention()

    def build(self, shape):
        self.attention.build(shape, shape)
        self.own.build(shape, shape)
        self.probe = self.add_weight(shape=(1, 1, shape[-1]), name="probe")

    def call(self, x):
        x = self.own(x, x)
        return self.attention(ops.repeat(self.probe, ops.shape(x)[0], axis=0), x)


def test_calls_tell_whether_attention_is_to_another_sequence():
    model = functional(Pooling(name="pooling"), (None, 16))
    sparse, lines = reported(model, local())
    assert lines == [
        f"replaced  pooling.own: {REPLACED}",
        "skipped   pooling.attention: MultiHeadAttention, it attends to another sequence",
    ]
    assert_same_results(model, sparse, vectors())


@keras.saving.register_keras_serializable(package="tests")
class Remembering(Block):
    """A block that keeps a tensor of its first call."""

    def call(self, x):
        if not hasattr(self, "scale"):
            self.scale = 2 * ops.ones_like(x[:1, :1])
        return super().call(x * self.scale)


def test_layers_keep_no_tensor_of_the_symbolic_calls():
    model = functional(Remembering())
    for layer in model.layers:
        vars(layer).pop("scale", None)  # of the graph that Keras made
    sparse = replace_attention(model, local(), print_fn=None)
    assert not any(hasattr(layer, "scale") for layer in model.layers)
    for layer in sparse.layers:
        vars(layer).pop("scale", None)
    assert_same_results(model, sparse, vectors())


@pytest.mark.full
def test_a_model_around_layers_of_a_sparse_model_is_saved_and_cloned_too(tmp_path):
    layers = [keras.Input((12,), dtype="int32"), keras.layers.Embedding(30, 16), Block(), keras.layers.Dense(30)]
    sparse = replace_attention(randomized(keras.Sequential(layers)), local(), print_fn=None)
    head = keras.Model(sparse.inputs[0], keras.layers.Dense(2)(sparse.layers[1].output))
    assert difference(head(ids()), reloaded(head, tmp_path)(ids())) == 0
    copy = keras.models.clone_model(sparse)
    copy.set_weights(sparse.get_weights())
    assert difference(copy(ids()), sparse(ids())) == 0
