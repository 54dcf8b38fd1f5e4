"""Adaptive input and softmax equal one softmax over the vocabulary, and the published numbers."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.goldens import goldens_of, read_case
from tests.programs import differentiate
from tf_sparse_attention.ops import adaptive_vocabulary
from tf_sparse_attention.ops.adaptive_vocabulary import Cluster, Gate, word_log_probabilities, word_loss

CASES = ("aio_single_token", "aio_tied_div2", "aio_untied_div4")

goldens = goldens_of("torch_peers/all_attention.npz")


def embedding_of(x):
    """Return the clusters of a published embedding, whose projections are stored transposed."""
    count = sum("emb_layers" in name for name in x)
    names = [(f"in_emb.emb_layers.{i}.weight", f"in_emb.emb_projs.{i}") for i in range(count)]
    return [Cluster(x[table], ops.transpose(x[projection])) for table, projection in names]


def softmax_of(x):
    """Return the clusters and the gate of a published softmax, which reads the gate's columns from the last on."""
    count = sum("out_projs" in name for name in x)
    names = ("out_layers.{}.weight", "out_projs.{}", "out_layers.{}.bias")
    rows = [[x["out_emb." + name.format(i)] for name in names] for i in range(count)]
    clusters = [Cluster(table, ops.transpose(projection), bias) for table, projection, bias in rows]
    kernel, bias = (x[f"out_emb.cluster_proj.{name}"] for name in ("weight", "bias"))
    return clusters, Gate(ops.transpose(ops.flip(kernel, axis=0)), ops.flip(bias, axis=0))


def weights_of(arrays, part):
    return {name.removeprefix("var/"): x for name, x in arrays.items() if name.startswith(f"var/{part}")}


@pytest.mark.parametrize("name", first(CASES, 2))
def test_the_embedding_and_its_gradients_equal_the_published_ones(goldens, name):
    arrays = read_case(goldens, name)[1]

    def run(x):
        return [adaptive_vocabulary.embed_words(arrays["indices"], embedding_of(x))]

    outputs, gradients = differentiate(run, weights_of(arrays, "in_emb"), arrays["cotangent_embed"])
    np.testing.assert_allclose(outputs[0], arrays["embed"], rtol=0, atol=1e-5)
    compare_gradients(gradients, arrays, "grad_embed")


def compare_gradients(gradients, arrays, prefix):
    """Compare gradients with published ones; none is stored where no word used the weight."""
    for weight, gradient in gradients.items():
        expected = arrays.get(f"{prefix}/{weight}", np.zeros(gradient.shape))
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-4, err_msg=weight)


@pytest.mark.parametrize("name", first(CASES, 2))
def test_the_loss_its_gradients_and_all_probabilities_equal_the_published_ones(goldens, name):
    arrays = read_case(goldens, name)[1]
    size = arrays["hidden"].shape[-1]
    inputs = {"hidden": arrays["hidden"], **weights_of(arrays, "out_emb")}

    def losses(x):
        nats = word_loss(ops.reshape(x["hidden"], (-1, size)), arrays["target"].reshape(-1), *softmax_of(x))
        return [ops.reshape(nats, arrays["target"].shape)]

    outputs, gradients = differentiate(losses, inputs, arrays["cotangent_nll"])
    np.testing.assert_allclose(outputs[0], arrays["nll"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.mean(outputs[0]), arrays["loss"], rtol=0, atol=1e-5)
    compare_gradients(gradients, arrays, "grad")
    every = word_log_probabilities(arrays["hidden"], *softmax_of(inputs))
    np.testing.assert_allclose(every, arrays["logp_full"], rtol=0, atol=1e-5)


def draw(sizes, hidden_dim=8, div_value=2, seed=0, dtype="float64"):
    """Return normal weights by name, for clusters with so many words."""
    rng = np.random.default_rng(seed)
    weights = {}
    for i, count in enumerate(sizes):
        size = hidden_dim // div_value**i
        weights |= {f"table{i}": (count, size), f"projection{i}": (size, hidden_dim), f"bias{i}": (count,)}
    weights |= {"kernel": (hidden_dim, len(sizes) - 1), "bias": (len(sizes) - 1,)} if len(sizes) > 1 else {}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in weights.items()}


def assemble(weights):
    """Return the clusters and the gate of drawn weights."""
    count = sum(name.startswith("table") for name in weights)
    clusters = [Cluster(*(weights[f"{name}{i}"] for name in ("table", "projection", "bias"))) for i in range(count)]
    return clusters, Gate(weights["kernel"], weights["bias"]) if count > 1 else None


SIZES = (2, 3, 20, 30)


@pytest.mark.parametrize(("sizes", "rows"), first([(SIZES, 200), (SIZES, 2), ((9,), 1), ((4, 1, 6), 7)], 3))
def test_the_loss_and_its_gradients_are_those_of_one_softmax_over_all_words(sizes, rows):
    rng = np.random.default_rng(rows)
    words = rng.integers(0, sum(sizes), rows).astype("int32")
    inputs = {"x": rng.standard_normal((rows, 8)), **draw(sizes)}
    cotangent = rng.standard_normal(rows)

    def of_all_words(x):
        every = word_log_probabilities(x["x"], *assemble(x))
        return [-ops.take_along_axis(every, words[:, None], axis=-1)[:, 0]]

    fast, fast_gradients = differentiate(lambda x: [word_loss(x["x"], words, *assemble(x))], inputs, cotangent)
    slow, slow_gradients = differentiate(of_all_words, inputs, cotangent)
    np.testing.assert_allclose(fast[0], slow[0], rtol=1e-12)
    for name, gradient in slow_gradients.items():
        np.testing.assert_allclose(fast_gradients[name], gradient, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("sizes", [(9,), SIZES])
def test_the_most_likely_word_is_that_of_all_probabilities(sizes):
    x = 2 * np.random.default_rng(1).standard_normal((500, 8))
    weights = assemble(draw(sizes, seed=2))
    expected = np.argmax(word_log_probabilities(x, *weights), axis=-1)
    assert len(set(expected)) > 1
    np.testing.assert_array_equal(adaptive_vocabulary.most_likely_word(x, *weights), expected)


def test_a_rare_word_as_likely_as_a_frequent_one_does_not_win():
    # One frequent word, and a cluster of as many equal words as it is more likely: without rounding, all are equal.
    equal, x = [], np.ones((1, 2))
    for count in range(2, 14):
        frequent = Cluster(np.zeros((1, 2)), np.zeros((2, 2)), np.zeros(1))
        rare = Cluster(np.zeros((count, 1)), np.zeros((1, 2)), np.zeros(count))
        weights = [frequent, rare], Gate(np.zeros((2, 1)), np.log([count]))
        if np.ptp(word_log_probabilities(x, *weights)) == 0:
            equal.append(int(adaptive_vocabulary.most_likely_word(x, *weights)[0]))
    assert len(equal) > 2 and not any(equal)


@pytest.mark.full
def test_an_unknown_number_of_rows_works():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("on JAX shapes are known")
    import tensorflow as tf

    weights = assemble(draw((4, 5, 6), dtype="float32"))
    signature = [tf.TensorSpec((None,), "int32"), tf.TensorSpec((None, 8))]
    loss = tf.function(lambda words, x: word_loss(x, words, *weights), input_signature=signature)
    for rows in (1, 65):
        rng = np.random.default_rng(rows)
        x, ids = rng.standard_normal((rows, 8)).astype("float32"), rng.integers(0, 15, rows).astype("int32")
        np.testing.assert_allclose(loss(ids, x), word_loss(x, ids, *weights), rtol=1e-5)


def test_at_most_twice_the_needed_rows_are_computed_and_other_rows_are_zero():
    x, seen = np.arange(100.0), []

    def function(rows, weights, numbers):
        seen.append(rows[0].shape[0])
        return (rows[0] + 1,)

    for count in (0, 1, 2, 3, 50, 51, 99, 100):
        seen.clear()
        needed = np.random.default_rng(0).permutation(100) < count
        (result,) = adaptive_vocabulary.apply_to_subset(function, needed, [x], dtypes=("float64",))
        np.testing.assert_array_equal(result, np.where(needed, x + 1, 0))
        if keras.backend.backend() == "tensorflow":  # on JAX every branch is traced
            assert (seen == []) if count == 0 else count <= seen[0] <= max(2, 2 * count)
