"""Compiled functions of a model."""

from collections.abc import Callable

import keras
from keras import ops


def compiled(function: Callable, model: keras.Model) -> Callable:
    """Compile a function that reads the current weights of a model in each call.

    Args:
        function: function of nested tensors. It may run the model, but not change its weights.
        model: a Keras model.

    Returns:
        Function of arrays or tensors. Each new shape compiles a program, which takes seconds. Other backends than
        TensorFlow and JAX run `function` without compilation.
    """
    program = _PROGRAMS.get(keras.backend.backend(), lambda function, model: function)(function, model)
    return lambda *arguments: program(*keras.tree.map_structure(ops.convert_to_tensor, arguments))


class Programs:
    """Cache of compiled programs of a model. Replaced weights clear the cache.

    Args:
        model: a Keras model.
        run_eagerly: whether to run without compilation, for tests and debugging. Default False.
    """

    def __init__(self, model: keras.Model, run_eagerly: bool = False) -> None:
        self._model = model
        self._run_eagerly = run_eagerly
        self._made: dict[tuple, Callable] = {}
        self._weights: tuple[int, ...] = ()

    def get(self, kind: tuple, make: Callable[[], Callable]) -> Callable:
        """Return the program with the key `kind`; a missing program is compiled from the result of `make`."""
        weights = tuple(map(id, self._model.variables))
        if weights != self._weights:  # replaced after tracing, such as by `enable_lora` or `quantize`
            self._made, self._weights = {}, weights
        kind = (*kind, *self._model.computed_windows)
        if kind not in self._made:
            self._made[kind] = make() if self._run_eagerly else compiled(make(), self._model)
        return self._made[kind]


def _on_tensorflow(function, model):
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def _on_jax(function, model):
    import jax

    @jax.jit
    def program(values, arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(*arguments)

    return lambda *arguments: program([variable.value for variable in model.variables], arguments)


_PROGRAMS = {"tensorflow": _on_tensorflow, "jax": _on_jax}
