"""Contracts of all attention layers of `tests/cases.py`.

The files `tests/layers/test_contract_*.py` run the checks. They use no backend directly: some also run on JAX, where a
call is one compiled program.
"""

import itertools

import keras
import numpy as np
from keras import ops

from tests.oracle.layers import as_array, dense_call
from tests.programs import compiled_on_jax
from tf_sparse_attention.analysis.gradients import vector_jacobian_product
from tf_sparse_attention.layers import RoutingAttention

# Outputs have a size of about 1. Seen: 1e-7 with the same order of sums, 1e-6 with other groups of tokens or another
# compiled program.
SAME, CLOSE = 2e-6, 5e-6
SIZE = 8  # features of the inputs


def call(layer, case, *inputs, **arguments):
    """Call a layer with the causal mask of its case and return arrays."""
    return to_numpy(compiled_on_jax(lambda *xs: layer(*xs, use_causal_mask=case.causal, **arguments))(*inputs))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def to_numpy(x):
    """Return tensors as arrays, bfloat16 as float32."""

    def convert(tensor):
        half = keras.backend.standardize_dtype(tensor.dtype) == "bfloat16"
        return ops.convert_to_numpy(ops.cast(tensor, "float32") if half else tensor)

    return keras.tree.map_structure(convert, x)


def assert_close(actual, expected, tolerance=SAME):
    """Fail unless two arrays are equal up to rounding."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def with_random_weights(layer, seed=1):
    """Assign random weights to a built layer, so that an unused bias or table changes results."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(0.5 * rng.standard_normal(weight.shape))
    return layer


def built(case, shape=(2, 13, SIZE), **common):
    """Return a built layer of a case with random weights."""
    layer = case.make(**common)
    layer.build(shape)
    return with_random_weights(layer)


def gradients(layer, case, *inputs, **arguments):
    """Return the gradients of a random projection of the output plus the losses, by the inputs and each weight."""
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
    """Return the cotangent of an output in `gradients`."""
    return normal(*shape, seed=9)


def random_masks(batch, heads, length, num_keys=None, seed=2, pairs=True, segments=True):
    """Return the arguments of a call with all masks, under which some queries see nothing.

    Without `pairs`, the attention mask has one row of keys per head. Without `segments`, there are no segments.
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


def nats_of(model, ids):
    """Return -log p of each id (B, T) of rows, from the logits of the model, in NumPy and float64."""
    logits = to_numpy(model(np.pad(ids[:, :-1], [(0, 0), (1, 0)]).astype("int32"))).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]


def check_config_round_trip(case):
    """Check that a layer from the config of another layer, with its weights, computes the same."""
    layer, x = built(case, dropout=0.1, use_bias=False, value_dim=3), normal(2, 13, SIZE)
    copy = type(layer).from_config(layer.get_config())
    copy.build(x.shape)
    copy.set_weights(layer.get_weights())
    assert copy.get_config() == layer.get_config()
    np.testing.assert_array_equal(call(copy, case, x), call(layer, case, x))


def check_equals_dense(case, **masks):
    """Check that output, weights, pattern and gradients equal dense attention with the same weights."""
    compare_with_dense(built(case), case, normal(2, 13, SIZE), **masks)


def compare_with_dense(layer, case, *inputs, tolerance=CLOSE, slope_tolerance=2 * CLOSE, **masks):
    """Compare a call of a built layer, its pattern and its gradients with dense attention in NumPy."""
    expected = dense_call(layer, *inputs, causal=case.causal, **masks)
    output, weights = call(layer, case, *inputs, return_attention_scores=True, **masks)
    pattern = compiled_on_jax(lambda *xs: layer.attention_pattern(*xs, use_causal_mask=case.causal, **masks))
    np.testing.assert_array_equal(to_numpy(pattern(*inputs)), expected.pattern)
    assert_close(weights, expected.weights, tolerance)
    assert_close(output, expected.output, tolerance)
    compare_gradients(layer, case, *inputs, tolerance=slope_tolerance, **masks)


def compare_gradients(layer, case, *inputs, tolerance=2 * CLOSE, **masks):
    """Compare gradients with the slope of dense attention along a random direction of all inputs and weights."""
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
    # A step can swap the order of two scores, and with it a group. A step ten times smaller then does not.
    slopes = [(projected(size) - projected(-size)) / (2 * size) for size in (2e-8, 2e-9)]
    # Rounding of float32 in each gradient, projected on the direction. Seen: 3e-7.
    scale = max(1.0, np.sqrt(sum(np.sum(np.square(of_x)) for of_x in found)))
    assert np.abs(along - slopes).min() < tolerance * scale, (along, slopes, scale)


def check_gradients(case):
    """Check that every trainable weight gets a gradient, except those that do not change a softmax."""
    layer, x = built(case), normal(2, 13, SIZE)
    of_x, *of_weights = gradients(layer, case, x, training=True)
    assert np.all(np.isfinite(of_x)) and np.all(np.any(of_x != 0, axis=-1))
    without_gradient = _weights_without_gradient(layer)
    for weight, gradient in zip(layer.trainable_weights, of_weights, strict=True):
        assert np.all(np.isfinite(gradient)), weight.path
        assert weight.path in without_gradient or np.abs(gradient).max() > 1e-4, weight.path


def _weights_without_gradient(layer):
    """Return the paths of the weights that change no softmax: they add one number to all scores of a query.

    The bias of the keys does, unless keys are normalized afterwards, as in routing, or rotated.
    """
    return {
        weight.path
        for part in getattr(layer, "parts", [layer])
        if not isinstance(part, RoutingAttention) and part.position != "rotary"
        for weight in part.trainable_weights
        if weight.path.endswith("key/bias")
    }


def check_padding(case, lengths=(1, 2, 7, 65)):
    """Check that sequences of any length have the same results alone and padded in a batch."""
    layer, x = built(case), normal(len(lengths), max(lengths) + 5, SIZE)
    mask = np.arange(max(lengths) + 5) < np.reshape(lengths, (-1, 1))
    padded = call(layer, case, np.where(mask[..., None], x, np.array([np.nan, np.inf] * (SIZE // 2))), query_mask=mask)
    for row, length in enumerate(lengths):
        alone = call(layer, case, x[row : row + 1, :length])
        assert alone.shape == (1, length, SIZE) and np.all(np.isfinite(alone))
        assert_close(padded[row, :length], alone[0], CLOSE)


def check_batch_mates(case):
    """Check that the output of a row does not depend on the other rows of the batch."""
    layer, x = built(case), normal(3, 13, SIZE)
    other = np.stack([x[0], np.full_like(x[1], np.nan), 1e3 * x[2]])
    assert_close(call(layer, case, other)[0], call(layer, case, x)[0], 0)
    assert_close(call(layer, case, x[:1])[0], call(layer, case, x)[0])


def check_segments(case):
    """Check that documents packed into one row have the results of separate rows."""
    layer, x = built(case), normal(1, 17, SIZE)
    ends = [0, 1, 6, 17]
    segments = np.repeat([7, 3, -1], np.diff(ends))[None].astype("int32")
    packed = call(layer, case, x, segment_ids=segments)
    for start, stop in itertools.pairwise(ends):
        assert_close(packed[:, start:stop], call(layer, case, x[:, start:stop]), CLOSE)


def check_state_is_left_alone(case):
    """Check that calls outside training, and of a frozen layer, change no weight."""
    layer, x = built(case, dropout=0.1), normal(2, 13, SIZE)
    before = layer.get_weights()
    call(layer, case, x)
    call(layer, case, x, training=False)
    layer.trainable = False
    call(layer, case, x, training=True)
    layer.trainable = True
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
