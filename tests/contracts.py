"""What every attention layer keeps: the checks, written once, for the layers of `tests/cases.py`.

The files `tests/layers/test_contract_*.py` run them. The checks here use no backend of their own: some run on JAX too,
where a call is one compiled program.

A layer whose pattern has `causal_selection` False (under a causal mask, WHICH keys a query sees depends on later
tokens) is checked to look ahead, so that the attribute is neither missing nor out of date.
"""

import itertools

import keras
import numpy as np
from keras import ops

from tests.oracle.layers import as_array, dense_call
from tests.programs import compiled_on_jax
from tf_sparse_attention.analysis.gradients import vector_jacobian_product
from tf_sparse_attention.layers import RoutingAttention

# In units of one, the size of the outputs compared. Seen: 1e-7 where the order of sums is the same, 1e-6 where tokens
# are grouped otherwise or another program multiplies the matrices.
SAME, CLOSE = 2e-6, 5e-6
SIZE = 8  # features of the inputs


def call(layer, case, *inputs, **arguments):
    """Call a layer as its case is called and return arrays."""
    return to_numpy(compiled_on_jax(lambda *xs: layer(*xs, use_causal_mask=case.causal, **arguments))(*inputs))


def normal(*shape, seed=0):
    """Return an array of normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def to_numpy(x):
    """Return tensors as arrays, those of half precision as float32."""

    def convert(tensor):
        half = keras.backend.standardize_dtype(tensor.dtype) == "bfloat16"
        return ops.convert_to_numpy(ops.cast(tensor, "float32") if half else tensor)

    return keras.tree.map_structure(convert, x)


def assert_close(actual, expected, tolerance=SAME):
    """Fail unless two arrays are equal up to rounding."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def with_random_weights(layer, seed=1):
    """Give a built layer weights without zeros and ones, so that a bias or table that is not used shows."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(0.5 * rng.standard_normal(weight.shape))
    return layer


def built(case, shape=(2, 13, SIZE), **common):
    """Return a built layer of a kind with random weights."""
    layer = case.make(**common)
    layer.build(shape)
    return with_random_weights(layer)


def gradients(layer, case, *inputs, **arguments):
    """Return the gradients of a random projection of the output and the layer's losses: of the inputs, each weight."""
    variables = layer.trainable_variables

    def run(sources):
        xs, weights = sources[: len(inputs)], sources[len(inputs) :]
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True)), collect_losses=True):
            output = layer(*xs, use_causal_mask=case.causal, **arguments)
            return [output, sum(layer.losses, ops.zeros(()))]

    def slopes(sources):
        (output, _), pull_back = vector_jacobian_product(run, sources)
        return pull_back([ops.cast(projection(output.shape), output.dtype), ops.ones(())])

    tensors = [ops.convert_to_tensor(x) for x in (*inputs, *(variable.value for variable in variables))]
    return to_numpy(compiled_on_jax(slopes)(tensors))


def projection(shape):
    """Return the numbers by which `gradients` multiplies an output before it adds them up."""
    return normal(*shape, seed=9)


def random_masks(batch, heads, length, num_keys=None, seed=2, pairs=True, segments=True):
    """Return masks of every kind at once, as a call takes them: some queries are left with nothing to see.

    Without `pairs` the attention mask is one of keys for each head; without `segments` there are none.
    """
    rng, num_keys = np.random.default_rng(seed), num_keys or length
    masks = {
        "query_mask": np.arange(length) < rng.integers(length // 2, length + 1, (batch, 1)),
        "key_mask": rng.random((batch, num_keys)) < 0.8,
        "attention_mask": rng.random((batch, heads, length, num_keys)) < 0.7,
        "segment_ids": np.sort(rng.integers(0, 3, (batch, length))).astype("int32"),
    }
    if not segments:
        del masks["segment_ids"]
    if not pairs:
        masks["attention_mask"] = masks["attention_mask"][:, :, :1]
    return masks


def check_config_round_trip(case):
    """A layer made from the config of another, with its weights, computes the same."""
    layer, x = built(case, dropout=0.1, use_bias=False, value_dim=3), normal(2, 13, SIZE)
    copy = type(layer).from_config(layer.get_config())
    copy.build(x.shape)
    copy.set_weights(layer.get_weights())
    assert copy.get_config() == layer.get_config()
    np.testing.assert_array_equal(call(copy, case, x), call(layer, case, x))


def check_dense_twin(case, **masks):
    """Output, weights, pattern and gradients are those of dense attention, computed from the layer's own weights."""
    compare_with_dense(built(case), case, normal(2, 13, SIZE), **masks)


def compare_with_dense(layer, case, *inputs, tolerance=CLOSE, slope_tolerance=2 * CLOSE, **masks):
    """Compare a call of a built layer, its pattern and its gradients with dense attention in NumPy."""
    expected = dense_call(layer, *inputs, causal=case.causal, **masks)
    output, weights = call(layer, case, *inputs, return_attention_scores=True, **masks)
    pattern = compiled_on_jax(lambda *xs: layer.attention_pattern(*xs, use_causal_mask=case.causal, **masks))
    np.testing.assert_array_equal(to_numpy(pattern(*inputs)), expected.pattern)
    assert_close(weights, expected.weights, tolerance)
    assert_close(output, expected.output, tolerance)
    compare_slopes(layer, case, *inputs, tolerance=slope_tolerance, **masks)


def compare_slopes(layer, case, *inputs, tolerance=2 * CLOSE, **masks):
    """Compare gradients with how dense attention changes along one random direction of all inputs and weights."""
    rng = np.random.default_rng(7)
    steps = [rng.standard_normal(x.shape) for x in inputs]
    of_weights = {weight.path: rng.standard_normal(weight.shape) for weight in layer.trainable_weights}

    def projected(size):
        moved = [x + size * step for x, step in zip(inputs, steps, strict=True)]
        output = dense_call(
            layer,
            *moved,
            causal=case.causal,
            read=lambda weight: as_array(weight) + size * of_weights.get(weight.path, 0.0),
            **masks,
        ).output
        return (output * projection(output.shape)).sum()

    found = gradients(layer, case, *inputs, **masks)
    along = sum(np.sum(of_x * step) for of_x, step in zip(found, [*steps, *of_weights.values()], strict=True))
    # On a step the order of two scores may change, and with it a group: then not on one ten times as small.
    slopes = [(projected(size) - projected(-size)) / (2 * size) for size in (2e-8, 2e-9)]
    # The rounding of float32 in each gradient, seen along the direction. Seen: 3e-7.
    scale = max(1.0, np.sqrt(sum(np.sum(np.square(of_x)) for of_x in found)))
    assert np.abs(along - slopes).min() < tolerance * scale, (along, slopes, scale)


def check_gradients(case):
    """Every trainable weight gets a gradient, save those that a softmax does not notice."""
    layer, x = built(case), normal(2, 13, SIZE)
    of_x, *of_weights = gradients(layer, case, x, training=True)
    assert np.all(np.isfinite(of_x)) and np.all(np.any(of_x != 0, axis=-1))
    unnoticed = _unnoticed_weights(layer)
    for weight, gradient in zip(layer.trainable_weights, of_weights, strict=True):
        assert np.all(np.isfinite(gradient)), weight.path
        assert weight.path in unnoticed or np.abs(gradient).max() > 1e-4, weight.path


def _unnoticed_weights(layer):
    """Return the paths of the weights that no softmax notices: a bias that moves all scores of a query alike.

    That of the keys does, unless they are normalised after it, as in routing, or turned by their positions.
    """
    return {
        weight.path
        for part in getattr(layer, "parts", [layer])
        if not isinstance(part, RoutingAttention) and part.position != "rotary"
        for weight in part.trainable_weights
        if weight.path.endswith("key/bias")
    }


def check_padding(case, lengths=(1, 2, 7, 65)):
    """Sequences of any length get alone, in a batch of one, what they get padded beside longer ones."""
    layer, x = built(case), normal(len(lengths), max(lengths) + 5, SIZE)
    mask = np.arange(max(lengths) + 5) < np.reshape(lengths, (-1, 1))
    padded = call(layer, case, np.where(mask[..., None], x, np.array([np.nan, np.inf] * (SIZE // 2))), query_mask=mask)
    for row, length in enumerate(lengths):
        alone = call(layer, case, x[row : row + 1, :length])
        assert alone.shape == (1, length, SIZE) and np.all(np.isfinite(alone))
        assert_close(padded[row, :length], alone[0], CLOSE)


def check_batch_mates(case):
    """A row has the same output whatever its neighbours in the batch are."""
    layer, x = built(case), normal(3, 13, SIZE)
    other = np.stack([x[0], np.full_like(x[1], np.nan), 1e3 * x[2]])
    assert_close(call(layer, case, other)[0], call(layer, case, x)[0], 0)
    assert_close(call(layer, case, x[:1])[0], call(layer, case, x)[0])


def check_segments(case):
    """Documents packed into one row get what each gets in a row of its own."""
    layer, x = built(case), normal(1, 17, SIZE)
    ends = [0, 1, 6, 17]
    segments = np.repeat([7, 3, -1], np.diff(ends))[None].astype("int32")
    packed = call(layer, case, x, segment_ids=segments)
    for start, stop in itertools.pairwise(ends):
        assert_close(packed[:, start:stop], call(layer, case, x[:, start:stop]), CLOSE)


def check_state_is_left_alone(case):
    """A call outside training changes no weight; nor does one in training if the layer is frozen."""
    layer, x = built(case, dropout=0.1), normal(2, 13, SIZE)
    before = layer.get_weights()
    call(layer, case, x)
    call(layer, case, x, training=False)
    layer.trainable = False
    call(layer, case, x, training=True)
    layer.trainable = True
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
