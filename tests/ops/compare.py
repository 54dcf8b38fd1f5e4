"""Runs a plan on the backend at hand and compares outputs and gradients with the dense twin."""

import functools

import keras
import numpy as np

from tests.ops.oracle import expected
from tests.ops.plans import draw, sparse

# In units of the largest number compared. Seen: 2e-14 in float64, 2e-6 in float32 (sums of up to 300 products).
TOLERANCE = {"float64": 2e-13, "float32": 2e-5}


def differentiate(function, inputs, cotangent):
    """Returns the outputs of `function(inputs)` and the gradient of its first one, times `cotangent`, by name.

    Args:
        function: from a dictionary of tensors to a sequence of tensors or None.
        inputs: dictionary of arrays.
        cotangent: array of the shape of the first output.
    """
    if keras.backend.backend() == "jax":
        return _differentiate_jax(function, inputs, cotangent)
    import tensorflow as tf

    inputs = {name: tf.convert_to_tensor(x) for name, x in inputs.items()}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(inputs)
    gradients = tape.gradient(outputs[0], inputs, tf.convert_to_tensor(cotangent), tf.UnconnectedGradients.ZERO)
    return outputs, {name: tf.convert_to_tensor(x) for name, x in gradients.items()}


def _differentiate_jax(function, inputs, cotangent):
    import jax

    def with_rest(inputs):
        outputs = function(inputs)
        return outputs[0], outputs

    _, pullback, outputs = jax.vjp(with_rest, inputs, has_aux=True)
    return outputs, pullback(cotangent)[0]


def actual(plan, inputs, masks, cotangent):
    """Returns output, weights and gradients of a plan as the library computes them: eager, or compiled on JAX."""
    run = _compiled(plan) if keras.backend.backend() == "jax" else functools.partial(_run, plan)
    return {name: keras.ops.convert_to_numpy(x) for name, x in run(inputs, masks, cotangent).items()}


def _run(plan, inputs, masks, cotangent):
    (output, weights), gradients = differentiate(lambda x: sparse(plan, x, masks), inputs, cotangent)
    return {"output": output, **({} if weights is None else {"weights": weights}), **gradients}


@functools.lru_cache(maxsize=1)
def _compiled(plan):
    import jax

    return jax.jit(functools.partial(_run, plan))


def assert_equals_dense(plan, seed):
    """Draws the numbers of a plan and compares the library with the dense twin."""
    numbers = draw(plan, seed)
    got, wanted = actual(plan, *numbers), expected(plan, *numbers)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = max(1.0, np.abs(value).max())
        tolerance = TOLERANCE[plan.dtype] * scale
        np.testing.assert_allclose(got[name], value, rtol=0, atol=tolerance, err_msg=f"{name} of {plan}, seed {seed}")
