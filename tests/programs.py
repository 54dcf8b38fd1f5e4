"""Functions as one program, and their gradients, on the backend at hand."""

import keras


def as_program(function):
    """Return a function as one program: a fraction of the time of many eager calls."""
    if keras.backend.backend() == "jax":
        return compiled_on_jax(function)
    import tensorflow as tf

    return tf.function(function)


def compiled_on_jax(function):
    """Return a function that is called once as a program of JAX, which would compile each of its operations."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def differentiate(function, inputs, cotangent):
    """Return the outputs of `function(inputs)` and the gradient of its first one, times `cotangent`, by name.

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
