"""Attention layers inside models: compiled, saved and trained, with known and unknown shapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import CASES, every_layer, marks
from tests.contracts import CLOSE, SIZE, assert_close, built, call, normal, to_numpy
from tests.draws import is_full

EXACT = 1e-12  # rounding of float64
TRACED = ("top_k_separate",)

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")


def model_of(case, layer, length=None):
    inputs = keras.Input((length, SIZE))
    return keras.Model(inputs, layer(inputs, use_causal_mask=case.causal))


def results(case, layer, x, mask):
    """Return output and scores of a call with a mask."""
    return layer(x, use_causal_mask=case.causal, query_mask=mask, return_attention_scores=True)


def slopes(case, layer, x, mask):
    """Return the gradients of such a call by the input and the weights."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(tf.math.sin(results(case, layer, x, mask)[0]))
    return tape.gradient(total, [x, *(weight.value for weight in layer.trainable_weights)])


def with_gradients(test):
    """Parametrize a test over `results` and `slopes` of all layers, of which few are in the default run.

    Gradients are compared in float64: those of weights are sums over all positions of terms that cancel out, which in
    float32 differ by more than a mistake does.
    """
    slow = [
        pytest.param(case, slopes, "float64", id=f"{name}-gradients", marks=pytest.mark.full)
        for name, case in CASES.items()
    ]
    quick = [pytest.param(case, results, "float32", id=name, marks=marks(name, TRACED)) for name, case in CASES.items()]
    return pytest.mark.parametrize(("case", "run", "dtype"), quick + slow)(test)


@with_gradients
def test_a_graph_of_unknown_batch_and_length_equals_eager_with_xla_and_without(case, run, dtype):
    layer = built(case, dtype=dtype)
    signature = [tf.TensorSpec((None, None, SIZE), dtype), tf.TensorSpec((None, None), "bool")]
    graph = tf.function(lambda *inputs: run(case, layer, *inputs), input_signature=signature)
    for length in (1, 33):
        x = tf.constant(normal(2, length, SIZE), dtype)
        mask = tf.constant(np.arange(length) < np.array([[length], [2]]))
        expected = run(case, layer, x, mask)
        assert_same(graph(x, mask), expected)
    # XLA makes a program of each length. By default it compiles the training below.
    if is_full():
        compiled = tf.function(graph.get_concrete_function(), jit_compile=True)
        assert_same(compiled(x, mask), expected)


def assert_same(found, expected):
    """Fail unless lists of tensors are equal up to rounding, in units of their largest numbers."""
    for a, b in zip(to_numpy(found), to_numpy(expected), strict=True):
        tolerance = CLOSE if b.dtype == "float32" else EXACT
        assert_close(a, b, tolerance * max(1.0, np.abs(b).max()))


# By default, layers of each class from their configs are compared in test_contract_results.py.
@every_layer(by_default=("mixed",))
def test_a_saved_model_is_unchanged_when_loaded_in_safe_mode(case, tmp_path):
    layer, x = built(case, dropout=0.1), normal(2, 13, SIZE)
    model = model_of(case, layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(loaded(x), call(layer, case, x), 0)


@pytest.mark.full
@every_layer(by_default=("mixed",))
def test_training_is_the_same_eager_in_a_graph_and_under_xla(case):
    expected = train(case, run_eagerly=True)
    for jit_compile in (False, True) if is_full() else (True,):
        for found, wanted in zip(train(case, jit_compile=jit_compile), expected, strict=True):
            assert_close(found, wanted, 1e-5)


def train(case, **compilation):
    """Return the losses of two steps of `fit` and the weights and state after them."""
    layer = built(case)
    model = model_of(case, layer)
    model.compile(keras.optimizers.SGD(0.01), "mse", **compilation)
    x, y = normal(4, 13, SIZE), normal(4, 13, SIZE, seed=1)
    history = model.fit(x, y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    return [np.array(history.history["loss"]), *layer.get_weights()]


@every_layer(by_default=("mixed",))
def test_symbolic_shapes_equal_real_shapes(case):
    for common, shape in ({"output_shape": 5}, (2, 7, 5)), ({"output_shape": (3, 2)}, (2, 7, 3, 2)):
        layer, x = case.make(value_dim=3, use_bias=False, **common), normal(2, 7, SIZE)
        given = {"use_causal_mask": case.causal}
        symbolic = layer(keras.Input((7, SIZE), batch_size=2), return_attention_scores=True, **given)
        output, weights = layer(x, return_attention_scores=True, **given)
        assert symbolic[0].shape == output.shape == layer.compute_output_shape((2, 7, SIZE)) == shape
        assert symbolic[1].shape == weights.shape == (2, layer.num_heads, 7, 7)
        assert not any("bias" in weight.name for weight in layer.trainable_weights)
        unknown = layer(keras.Input((None, SIZE)), **given)
        assert unknown.shape == (None, None, *shape[2:]) and layer.compute_output_shape(x.shape) == shape


@every_layer(by_default=("top_k_separate",), crosses=True)
def test_symbolic_shapes_of_cross_attention_equal_real_shapes(case):
    query, value = normal(2, 7, SIZE), normal(2, 5, 3)
    layer = case.make()
    symbolic = layer(keras.Input((7, SIZE)), keras.Input((5, 3)), return_attention_scores=True)
    real = call(layer, case, query, value, return_attention_scores=True)
    assert [x.shape[1:] for x in symbolic] == [x.shape[1:] for x in real]
