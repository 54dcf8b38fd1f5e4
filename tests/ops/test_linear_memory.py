"""No array of any sparse attention is quadratic in the sequence, forward or backward, on either backend."""

import keras
import pytest

from tests.ops import arrays, linear_memory

BACKENDS = ["tensorflow", "jax"]


@pytest.fixture(scope="module")
def found(on_jax):
    """The quadratic arrays of every program, by backend and name."""
    assert keras.backend.backend() == "tensorflow"
    return {"tensorflow": linear_memory.quadratic_arrays(), "jax": on_jax["quadratic"]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", linear_memory.PLANS)
def test_no_array_is_quadratic_in_the_sequence(found, backend, name):
    assert found[backend][name] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_look_finds_the_scores_of_dense_attention(found, backend):
    assert any("MatMul" in array or "dot_general" in array for array in found[backend]["dense"])


def test_the_look_goes_into_called_functions():
    tf = pytest.importorskip("tensorflow")

    @tf.function
    def outer(x, flag):
        return tf.cond(flag, lambda: tf.reduce_sum(tf.matmul(x, x, transpose_b=True)), lambda: 0.0)

    specs = tf.TensorSpec((9, 4)), tf.TensorSpec((), tf.bool)
    called = tf.function(lambda x, flag: outer(x, flag)).get_concrete_function(*specs)
    assert ("MatMul", (9, 9)) in arrays.quadratic(arrays.shapes_of_graph(called.graph), 9, 9, 100)


def test_an_array_with_both_lengths_or_too_many_elements_is_found():
    shapes = [("fine", (7, 9)), ("both", (7, 1, 8)), ("same", (8, 8)), ("large", (101,)), ("edge", (100,))]
    assert [name for name, _ in arrays.quadratic(shapes, 7, 8, 100)] == ["both", "large"]
    assert [name for name, _ in arrays.quadratic(shapes, 8, 8, 100)] == ["same", "large"]
