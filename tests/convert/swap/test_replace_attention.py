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


def reported(model, make_layer, **options):
    """Return the sparse model and the lines of the report."""
    lines = []
    sparse = replace_attention(model, make_layer, print_fn=lines.append, **options)
    return sparse, "\n".join(lines).split("\n")


def reloaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


@pytest.mark.parametrize("use_causal_mask", [False, True])
def test_a_window_as_long_as_the_sequence_gives_the_dense_result(use_causal_mask):
    model = make_transformer(use_causal_mask)
    tokens = ids()
    sparse, lines = reported(model, local())
    assert difference(model(tokens), sparse(tokens)) < 1e-5
    assert lines == [f"replaced  attention_{i}: MultiHeadAttention by LocalAttention" for i in (0, 1)]


def test_padding_by_an_implicit_mask_is_kept():
    # One layer: Keras's attention takes the mask off its query, so that the next layer of the dense model has none.
    model, tokens = make_transformer(num_layers=1), ids()
    tokens[1, 7:] = 0
    sparse = replace_attention(model, local(), print_fn=None)
    kept = np.arange(12) < np.array([[12], [7]])
    assert difference(ops.convert_to_numpy(model(tokens))[kept], ops.convert_to_numpy(sparse(tokens))[kept]) < 1e-5


def test_a_shorter_window_is_the_pattern_with_the_same_weights():
    model, tokens = make_transformer(num_layers=1), ids()
    sparse = replace_attention(model, local(3), print_fn=None)
    near = np.abs(np.arange(12)[:, None] - np.arange(12)) < 3
    dense, inputs = model.get_layer("attention_0"), keras.Input((12, 16))
    masked = keras.Model(inputs, dense(inputs, inputs, attention_mask=near[None]))
    x = ops.convert_to_numpy(model.layers[1](tokens))  # without its mask
    assert difference(masked(x), sparse.get_layer("attention_0")(x)) < 1e-5


def test_the_dense_model_stays_as_it_is_and_shares_nothing():
    model, tokens = make_transformer(), ids()
    before = ops.convert_to_numpy(model(tokens))
    sparse = replace_attention(model, local(), print_fn=None)
    for weight in sparse.weights:
        weight.assign(weight + 1.0)
    assert difference(before, model(tokens)) == 0
    assert isinstance(model.get_layer("attention_0"), keras.layers.MultiHeadAttention)


def test_a_functional_model_is_saved_and_loaded(tmp_path):
    sparse, tokens = replace_attention(make_transformer(True), routed, print_fn=None), ids()
    assert difference(sparse(tokens), reloaded(sparse, tmp_path)(tokens)) == 0


def test_a_swapped_causal_model_is_causal():
    assert_causal(replace_attention(make_transformer(True), mixed, print_fn=None), sequence_length=12, num_cuts=4)


def test_heads_go_to_the_parts_of_a_mixed_attention_in_order():
    model, tokens = make_transformer(True), ids()

    def two_windows(dense):
        from tf_sparse_attention.layers import MixedAttention

        arguments = {**arguments_of(dense), "num_heads": 1}
        return MixedAttention([LocalAttention(**{**arguments, "name": name}, window=12) for name in "ab"])

    assert difference(model(tokens), replace_attention(model, two_windows, print_fn=None)(tokens)) < 1e-5


def test_explicit_masks_and_returned_weights_are_kept():
    inputs, mask = keras.Input((12, 16)), keras.Input((12, 12), dtype="bool")
    attention = keras.layers.MultiHeadAttention(2, 8, use_bias=False)
    output, weights = attention(inputs, value=inputs, attention_mask=mask, return_attention_scores=True)
    model = randomized(keras.Model([inputs, mask], [output, weights]))
    x = np.random.default_rng(0).normal(size=(2, 12, 16)).astype("float32")
    allowed = np.random.default_rng(1).random((2, 12, 12)) < 0.7
    allowed |= np.eye(12, dtype=bool)
    sparse = replace_attention(model, local(), print_fn=None)
    for dense_result, sparse_result in zip(model([x, allowed]), sparse([x, allowed]), strict=True):
        assert difference(dense_result, sparse_result) < 1e-5


def test_attention_to_another_sequence_is_left():
    query, value = keras.Input((12, 16)), keras.Input((9, 16))
    own = keras.layers.MultiHeadAttention(2, 8, name="own")(query, query)
    cross = keras.layers.MultiHeadAttention(2, 8, name="other")(own, value)
    model = randomized(keras.Model([query, value], cross))
    sparse, lines = reported(model, local())
    assert lines[1] == "skipped   other: MultiHeadAttention, it attends to another sequence"
    x, y = (np.random.default_rng(0).normal(size=(2, length, 16)).astype("float32") for length in (12, 9))
    assert difference(model([x, y]), sparse([x, y])) < 1e-5


def test_a_layer_that_attends_both_ways_must_be_declined():
    query, value = keras.Input((12, 16)), keras.Input((9, 16))
    both = keras.layers.MultiHeadAttention(2, 8, name="both")
    model = keras.Model([query, value], both(both(query, query), value))
    with pytest.raises(ValueError, match="None for both: one of its calls attends to another sequence"):
        replace_attention(model, local())


def test_models_inside_models_are_replaced_too(tmp_path):
    inner = make_transformer()
    inputs = keras.Input((12,), dtype="int32")
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(Block()(inner(inputs) @ np.ones((30, 16)))))
    randomized(model)
    sparse, lines = reported(model, local())
    assert len(lines) == 3 and lines[0].startswith(f"replaced  {inner.name}.attention_0:")
    assert difference(model(ids()), sparse(ids())) < 1e-5
    assert difference(sparse(ids()), reloaded(sparse, tmp_path)(ids())) == 0


@pytest.mark.full
def test_a_sequential_model_of_blocks_is_replaced_saved_and_trained(tmp_path):
    layers = [keras.Input((12,), dtype="int32"), keras.layers.Embedding(30, 16), Block(), keras.layers.Dense(30)]
    model = randomized(keras.Sequential(layers))
    sparse, lines = reported(model, routed)
    assert lines == [f"replaced  {model.layers[1].name}.attention: MultiHeadAttention by RoutingAttention"]
    sparse.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    losses = sparse.fit(ids(16), ids(16), epochs=2, batch_size=8, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    loaded = reloaded(sparse, tmp_path)
    assert difference(sparse(ids()), loaded(ids())) == 0
    assert loaded.optimizer.iterations == 4


def test_lists_tuples_dictionaries_and_shared_layers_of_a_subclassed_model(tmp_path):
    model = Classifier()
    model.build((None, 12))
    randomized(model)
    sparse, lines = reported(model, local())
    held = ["pools['last']", "more[0]", "blocks[0].attention", "blocks[1].attention"]
    assert lines == [f"replaced  {path}: MultiHeadAttention by LocalAttention" for path in held]
    assert difference(model(ids()), sparse(ids())) < 1e-5
    assert len(sparse.weights) == len(model.weights)
    assert isinstance(sparse, Classifier) and isinstance(sparse.more[0], SwappedAttention)
    assert sparse.blocks[0] is sparse.blocks[2]
    assert difference(sparse(ids()), reloaded(sparse, tmp_path)(ids())) == 0


def test_a_pattern_can_be_told_that_masks_hide_later_positions():
    inputs = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(30, 16)(inputs)
    earlier = np.tril(np.ones((1, 16, 16), dtype=bool))
    model = randomized(keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8)(x, x, attention_mask=earlier)))

    calls = []

    class Recording(LocalAttention):
        def compute_attention(self, heads, masks, causal, *args):
            calls.append(causal)
            return super().compute_attention(heads, masks, causal, *args)

    for causal in (True, False):
        calls.clear()
        sparse = replace_attention(
            model, lambda dense: Recording(**arguments_of(dense), window=4), causal=causal, print_fn=None
        )
        assert_causal(sparse, sequence_length=16, num_cuts=4)
        assert set(calls) == {causal}


def test_what_cannot_be_replaced_is_reported_with_the_reason():
    inputs = keras.Input((12, 16))
    x = keras.layers.MultiHeadAttention(2, 8, name="plain")(inputs, inputs)
    x = keras.layers.MultiHeadAttention(2, 8, name="declined")(x, x)
    x = keras.layers.Reshape((3, 4, 16))(x)
    x = keras.layers.MultiHeadAttention(2, 8, attention_axes=(1, 2), name="plane")(x, x)
    model = keras.Model(inputs, x)
    _, lines = reported(model, lambda dense: None if dense.name == "declined" else local()(dense))
    assert sorted(lines) == sorted(
        [
            "replaced  plain: MultiHeadAttention by LocalAttention",
            "skipped   declined: MultiHeadAttention, make_layer returned None",
            "skipped   plane: MultiHeadAttention, it attends over several axes",
        ]
    )
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8, name="quantized")(inputs, inputs))
    model.quantize("int8", filters=lambda layer: layer.name != inputs.name and hasattr(layer, "kernel"))
    with pytest.raises(ValueError, match=r"must not be quantized.* with quantized: it is quantized: replace its"):
        replace_attention(model, local())


def test_grouped_heads_and_gates_are_taken_over():
    inputs = keras.Input((12, 16))
    x = keras.layers.MultiHeadAttention(2, 8, use_gate=True, name="gated")(inputs, inputs, use_causal_mask=True)
    grouped = keras.layers.GroupQueryAttention(8, 4, 2, use_gate=True, sliding_window=5, name="grouped")
    model = randomized(keras.Model(inputs, grouped(x, x, use_causal_mask=True)))
    sparse, lines = reported(model, local())
    assert lines == [
        "replaced  gated: MultiHeadAttention by LocalAttention",
        "replaced  grouped: GroupedQueryAttention by LocalAttention; LocalAttention with window=5 instead of 12: "
        "its sliding_window is 5",
    ]
    x = np.random.default_rng(0).normal(size=(2, 12, 16))
    assert difference(model(x), sparse(x)) < 1e-5


def test_a_subclass_that_computes_something_else_is_left():
    class Other(keras.layers.MultiHeadAttention):
        def _compute_attention(self, *args, **kwargs):
            return super()._compute_attention(*args, **kwargs)

    inputs = keras.Input((12, 16))
    model = keras.Model(inputs, Other(2, 8, name="other")(inputs, inputs))
    with pytest.raises(ValueError, match="Other overrides the computation of its base class"):
        replace_attention(model, local())
    model = keras.Model(inputs, Rotated(2, 8)(inputs, inputs))
    with pytest.raises(ValueError, match="Rotated overrides the computation of its base class"):
        replace_attention(model, local())


def test_nodes_of_a_class_of_its_own_are_left_with_the_reason():
    @keras.saving.register_keras_serializable(package="tests")
    class Own(keras.Model):
        def __init__(self, **kwargs):
            inputs = keras.Input((12, 16))
            super().__init__(inputs, keras.layers.MultiHeadAttention(2, 8, name="node")(inputs, inputs), **kwargs)

        def get_config(self):
            return {"name": self.name}

    with pytest.raises(ValueError, match="node: MultiHeadAttention, it is a node of a Own"):
        replace_attention(Own(), local())
    own = Own()
    plain = keras.Model(own.inputs, own.outputs)
    assert isinstance(replace_attention(plain, local(), print_fn=None).get_layer("node"), LocalAttention)


def test_vocabularies_of_preprocessing_layers_are_kept():
    lookup = keras.layers.IntegerLookup(vocabulary=[7, 3, 5], name="lookup")
    adapted = keras.layers.Normalization(name="norm")
    adapted.adapt(np.arange(64.0).reshape(4, 16))
    inputs = keras.Input((12,), dtype="int64")
    x = adapted(keras.layers.Embedding(8, 16)(lookup(inputs)))
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8)(x, x))
    tokens = np.random.default_rng(0).choice([3, 5, 7], (2, 12))
    assert difference(model(tokens), replace_attention(model, local(), print_fn=None)(tokens)) < 1e-5


def test_half_precision_policies_are_kept():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make_transformer(True)
    finally:
        keras.config.set_dtype_policy("float32")
    sparse = replace_attention(model, local(), print_fn=None)
    assert sparse.get_layer("attention_0").compute_dtype == "bfloat16"
    assert difference(model(ids()), sparse(ids())) < 0.1


def test_arguments_of_are_those_that_both_have():
    dense = keras.layers.MultiHeadAttention(
        4, 8, value_dim=6, dropout=0.1, use_bias=False, output_shape=5, name="dense"
    )
    layer = LocalAttention(**arguments_of(dense), window=3)
    assert (layer.num_heads, layer.key_dim, layer.value_dim, layer.dropout) == (4, 8, 6, 0.1)
    assert (layer.use_bias, layer.name, layer.compute_output_shape((2, 3, 16))) == (False, "dense", (2, 3, 5))
    with pytest.raises(ValueError, match="`attention` must be a"):
        arguments_of(layer)


def test_arguments_of_have_the_smaller_of_two_windows_where_one_is_asked_for():
    dense = keras.layers.MultiHeadAttention(4, 8, sliding_window=5)
    assert "window" not in arguments_of(dense)
    windows = [LocalAttention(**arguments_of(dense, window=asked)).window for asked in (3, 5, 9)]
    assert windows == [3, 5, 5]
    assert arguments_of(keras.layers.MultiHeadAttention(4, 8), window=9)["window"] == 9
    with pytest.raises(ValueError, match="`window` must be"):
        arguments_of(dense, window=0)


@pytest.mark.parametrize(
    ("asked", "use_causal_mask"), first([(2, True), (4, False), (12, True), (2, False), (4, True), (12, False)], 3)
)
def test_the_smaller_of_the_own_window_and_the_one_asked_for_is_applied_and_reported(asked, use_causal_mask):
    model = make_transformer(use_causal_mask, sliding_window=4)
    sparse, lines = reported(model, local(asked))
    assert sparse.get_layer("attention_0").window == min(asked, 4)
    remark = "" if asked <= 4 else f"; LocalAttention with window=4 instead of {asked}: its sliding_window is 4"
    assert lines[0] == f"replaced  attention_0: MultiHeadAttention by LocalAttention{remark}"
    assert (difference(model(ids()), sparse(ids())) < 1e-5) == (asked >= 4)


@keras.saving.register_keras_serializable(package="tests")
class NearBlock(Block):
    """A block whose attention has a window of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 8, sliding_window=3)


def test_the_own_window_is_applied_inside_of_layers_too_at_all_sites_of_a_shared_one(tmp_path):
    inputs, block = keras.Input((12,), dtype="int32"), NearBlock(name="block")
    x = block(block(keras.layers.Embedding(30, 16)(inputs)))
    model = randomized(keras.Model(inputs, x))
    sparse, lines = reported(model, local())
    assert lines == [
        "replaced  block.attention: MultiHeadAttention by LocalAttention; "
        "LocalAttention with window=3 instead of 12: its sliding_window is 3"
    ]
    assert difference(model(ids()), sparse(ids())) < 1e-5
    assert difference(sparse(ids()), reloaded(sparse, tmp_path)(ids())) == 0


def test_layers_without_a_window_in_place_of_one_with_it_are_reported():
    model = make_transformer(sliding_window=2, num_layers=1)
    further = "may see further than the sliding_window of 2"
    assert reported(model, routed)[1] == [
        f"replaced  attention_0: MultiHeadAttention by RoutingAttention; RoutingAttention has no window: it {further}"
    ]
    sparse, lines = reported(model, mixed)
    assert lines == [
        "replaced  attention_0: MultiHeadAttention by MixedAttention; LocalAttention with window=2 instead of 4: "
        f"its sliding_window is 2; RoutingAttention has no window: it {further}"
    ]
    assert [part.name for part in sparse.layers[2].parts] == ["near", "far"]


@pytest.mark.parametrize("window", [1, 9])
@pytest.mark.parametrize(
    ("kind", "options"), [(NativeSparseAttention, {"block_size": 2}), (GlobalLocalAttention, {"num_first_global": 1})]
)
def test_layers_that_see_beyond_their_window_are_reported(kind, options, window):
    causal = kind is NativeSparseAttention
    model = make_transformer(causal, sliding_window=3, num_layers=1)
    sparse, lines = reported(model, lambda dense: kind(**arguments_of(dense), window=window, **options))
    further = "sees beyond its window: it may see further than the sliding_window of 3"
    assert lines == [f"replaced  attention_0: MultiHeadAttention by {kind.__name__}; {kind.__name__} {further}"]
    assert sparse.get_layer("attention_0").window == window


def test_a_window_that_does_not_count_the_query_is_one_less():
    def all_attention(mask_self):
        return lambda dense: AllAttention(**arguments_of(dense), num_persistent=1, window=9, mask_self=mask_self)

    model = make_transformer(sliding_window=4, num_layers=1)
    windows = [reported(model, all_attention(own))[0].get_layer("attention_0").window for own in (False, True)]
    assert windows == [4, 3]
    with pytest.raises(
        ValueError, match=r"be limited to the sliding_window of 1\. Received: attention_0 with window=9"
    ):
        reported(make_transformer(sliding_window=1, num_layers=1), all_attention(True))


@pytest.mark.parametrize(
    ("model", "make_layer", "message"),
    [
        (keras.layers.Dense(3), local(), "`model` must be a built `keras.Model`"),
        (Classifier(), local(), "`model` must be a built `keras.Model`"),
        (make_transformer(), 3, "`make_layer` must be a function of a layer. Received: make_layer=3"),
        (make_transformer(), LocalAttention(2, 8), "`make_layer` must be a function of a layer"),
        (make_transformer(), LocalAttention, "`make_layer` must be a function of a layer"),
        (make_transformer(), lambda dense: dense, "must return an attention layer of this library or None"),
        (make_transformer(), lambda dense: LocalAttention(3, 8), "must return a layer that fits attention_0"),
        (make_transformer(), lambda dense: LocalAttention(2, 8, use_bias=False), "and have the projections"),
        (make_transformer(num_layers=0), local(), "no attention found"),
        (make_transformer(), lambda dense: None, "skipped   attention_0: MultiHeadAttention, make_layer returned None"),
    ],
)
def test_what_is_wrong_is_said(model, make_layer, message):
    with pytest.raises(ValueError, match=message):
        replace_attention(model, make_layer)


def test_a_model_that_is_not_reconstructible_is_refused():
    class Sealed(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def call(self, x):
            return self.layer(x, x)

    model = Sealed(keras.layers.MultiHeadAttention(2, 8))
    model(np.zeros((1, 12, 16), "float32"))
    with pytest.raises(ValueError, match=r"`model` must be reconstructible from its config; Sealed is not"):
        replace_attention(model, local())


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


@keras.saving.register_keras_serializable(package="tests")
class Around(keras.Model):
    """A model that holds one whose config omits arguments."""

    def __init__(self, inner, **kwargs):
        inputs = keras.Input((12, 16))
        super().__init__(inputs, inner(inputs), **kwargs)
        self.inner = inner

    def get_config(self):
        return {"name": self.name, "inner": keras.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "inner": keras.saving.deserialize_keras_object(config["inner"])})


@pytest.mark.parametrize(
    "around", [lambda model: model, Around, lambda model: keras.Sequential([keras.Input((12, 16)), model])]
)
def test_arguments_that_a_config_omits_are_those_of_the_attributes(around, tmp_path):
    model = randomized(around(Forgetful(5, activation="tanh")))
    x = np.random.default_rng(0).normal(size=(2, 12, 16)).astype("float32")
    sparse = replace_attention(model, local(), print_fn=None)
    assert difference(model(x), sparse(x)) < 1e-5
    again = reloaded(reloaded(sparse, tmp_path), tmp_path)
    assert difference(sparse(x), again(x)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_bias": False}, r"the copy of .*, a Forgetful, has layers\[3\]\.bias \(5,\)\."),
        ({"scale": 3}, r"Forgetful is not: its config has no scale\."),
    ],
)
def test_what_a_config_omits_is_named_where_no_attribute_has_it(arguments, message):
    with pytest.raises(ValueError, match=f"`model` must be reconstructible from its config; {message}"):
        replace_attention(Forgetful(5, **arguments), local())


@keras.saving.register_keras_serializable(package="tests")
class Pooling(keras.layers.Layer):
    """Attention of a vector to a sequence of the same size, without a word of it in any name."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 8)
        self.own = keras.layers.MultiHeadAttention(2, 8)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.own.build(shape, shape)
        self.probe = self.add_weight(shape=(1, 1, shape[-1]), name="probe")

    def call(self, x):
        x = self.own(x, x)
        return self.attention(ops.repeat(self.probe, ops.shape(x)[0], axis=0), x)


@pytest.mark.parametrize("length", [12, None])
def test_attention_to_another_sequence_is_told_by_its_calls(length):
    inputs = keras.Input((length, 16))
    model = randomized(keras.Model(inputs, Pooling(name="pooling")(inputs)))
    sparse, lines = reported(model, local())
    assert lines == [
        "replaced  pooling.own: MultiHeadAttention by LocalAttention",
        "skipped   pooling.attention: MultiHeadAttention, it attends to another sequence",
    ]
    x = np.random.default_rng(0).normal(size=(2, 12, 16)).astype("float32")
    assert difference(model(x), sparse(x)) < 1e-5


def test_inputs_in_another_precision_are_the_own_sequence():
    @keras.saving.register_keras_serializable(package="tests")
    class Half(Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.attention = keras.layers.MultiHeadAttention(2, 8, dtype="mixed_bfloat16")

        def call(self, x):
            return self.norm(x + ops.cast(self.attention(x, x), x.dtype))

    inputs = keras.Input((12, 16))
    model = keras.Model(inputs, Half()(inputs))
    assert reported(model, local())[1][0].startswith("replaced")


@keras.saving.register_keras_serializable(package="tests")
class Scores(Block):
    """A block that asks its attention for what no sparse layer has."""

    def call(self, x):
        return self.norm(x + self.attention(x, x, query_mask=ops.ones(ops.shape(x)[:2], "bool")))


def test_a_model_whose_copy_cannot_be_called_is_refused_with_the_reason():
    inputs = keras.Input((None, 16))
    model = keras.Model(inputs, Scores(name="block")(inputs))
    with pytest.raises(ValueError, match=r"(?s)copy raises TypeError.*'query_mask'.*replaced  block\.attention"):
        replace_attention(model, local())


@keras.saving.register_keras_serializable(package="tests")
class Remembering(Block):
    """A block that keeps a tensor of its first call."""

    def call(self, x):
        if not hasattr(self, "scale"):
            self.scale = 2 * ops.ones_like(x[:1, :1])
        return super().call(x * self.scale)


def test_layers_keep_no_tensor_of_the_symbolic_calls():
    inputs = keras.Input((12, 16))
    model = keras.Model(inputs, Remembering()(inputs))
    x = np.random.default_rng(0).normal(size=(2, 12, 16)).astype("float32")
    for layer in model.layers:
        vars(layer).pop("scale", None)  # of the graph that Keras made
    sparse = replace_attention(model, local(), print_fn=None)
    assert not any(hasattr(layer, "scale") for layer in model.layers)
    for layer in sparse.layers:
        vars(layer).pop("scale", None)
    assert difference(model(x), sparse(x)) < 1e-5


class Rotated(keras.layers.MultiHeadAttention):
    """Attention whose `call` takes caches as KerasHub's does, and something else."""

    def call(self, query, value, key=None, attention_mask=None, cache=None, cache_update_index=None, rotary=None):
        return super().call(query, value, key, attention_mask=attention_mask)


@keras.saving.register_keras_serializable(package="tests")
class Unnamed(keras.Model):
    """A functional model of a class of its own, whose layers are named by Keras, others each time."""

    def __init__(self, **kwargs):
        x = inputs = keras.Input((12, 16))
        super().__init__(inputs, keras.layers.Dense(3)(Block()(keras.layers.Dense(16)(x))), **kwargs)

    def get_config(self):
        return {"name": self.name}


@keras.saving.register_keras_serializable(package="tests")
class Nested(keras.Model):
    """A model that holds its layers in lists of lists and tuples."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.steps = [[keras.layers.MultiHeadAttention(2, 8), (keras.layers.Dense(16), Block())] for _ in range(2)]

    def build(self, shape):
        for attention, (dense, block) in self.steps:
            attention.build(shape, shape)
            dense.build(shape)
            block.build(shape)
        self.built = True

    def call(self, x):
        for attention, (dense, block) in self.steps:
            x = block(dense(x + attention(x, x)))
        return x

    def get_config(self):
        return {"name": self.name}


@pytest.mark.parametrize(("kind", "number"), [(Unnamed, 1), (Nested, 4)])
def test_weights_go_where_they_were_whatever_layers_are_called_and_however_they_are_held(kind, number, tmp_path):
    model = kind()
    if not model.built:
        model.build((None, 12, 16))
    randomized(model)
    x = np.random.default_rng(0).normal(size=(2, 12, 16)).astype("float32")
    sparse, lines = reported(model, local())
    assert len(lines) == number
    assert difference(model(x), sparse(x)) < 1e-5
    assert difference(sparse(x), reloaded(sparse, tmp_path)(x)) == 0


def test_a_model_around_layers_of_a_sparse_one_is_saved_too(tmp_path):
    layers = [keras.Input((12,), dtype="int32"), keras.layers.Embedding(30, 16), Block(), keras.layers.Dense(30)]
    sparse = replace_attention(randomized(keras.Sequential(layers)), routed, print_fn=None)
    head = keras.Model(sparse.inputs[0], keras.layers.Dense(2)(sparse.layers[1].output))
    assert difference(head(ids()), reloaded(head, tmp_path)(ids())) == 0
    copy = keras.models.clone_model(sparse)
    copy.set_weights(sparse.get_weights())
    assert difference(copy(ids()), sparse(ids())) == 0


def test_what_is_frozen_stays_frozen(tmp_path):
    model = Classifier()
    model.build((None, 12))
    model.blocks[0].attention.trainable = False
    model.pools["last"].trainable = False
    sparse = replace_attention(model, local(), print_fn=None)
    assert len(sparse.trainable_weights) == len(model.trainable_weights) < len(model.weights)
    functional = make_transformer()
    functional.get_layer("attention_1").trainable = False
    sparse = replace_attention(functional, local(), print_fn=None)
    assert len(sparse.trainable_weights) == len(functional.trainable_weights)


def test_masks_of_numbers_are_those_of_keras():
    inputs, mask = keras.Input((12, 16)), keras.Input((12, 12))
    model = randomized(
        keras.Model([inputs, mask], keras.layers.MultiHeadAttention(2, 8)(inputs, inputs, attention_mask=mask))
    )
    x = np.random.default_rng(0).normal(size=(2, 12, 16)).astype("float32")
    earlier = np.tril(np.ones((2, 12, 12), "float32"))
    assert difference(model([x, earlier]), replace_attention(model, local(), print_fn=None)([x, earlier])) < 1e-5


def test_one_layer_for_several_places_is_refused():
    one = LocalAttention(2, 8, window=3)
    with pytest.raises(ValueError, match=r"`make_layer` must return a new layer each time\. .* again, for attention_1"):
        replace_attention(make_transformer(), lambda dense: one)


def test_a_layer_that_cannot_be_causal_is_refused_where_it_must_be():
    with pytest.raises(ValueError, match="must return a layer that can be causal for attention_0"):
        replace_attention(make_transformer(True), lambda dense: ClusteredAttention(**arguments_of(dense)))
