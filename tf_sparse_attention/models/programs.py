"""Functions of a model as compiled programs."""

from collections.abc import Callable

import keras
from keras import ops


def compiled(function: Callable, model: keras.Model) -> Callable:
    """Returns the function as one compiled program, which reads the model's current weights in each call.

    Args:
        function: takes and returns tensors in nested structures, and runs the model without changing its weights.
        model: a Keras model.

    Returns:
        A function of arrays or tensors; for every new shape it compiles a program, which takes seconds. On backends
        other than TensorFlow and JAX nothing is compiled.
    """
    program = _PROGRAMS.get(keras.backend.backend(), lambda function, model: function)(function, model)
    return lambda *arguments: program(*keras.tree.map_structure(ops.convert_to_tensor, arguments))


class Programs:
    """The compiled programs of a model, by what they depend on, for the weights that the model has now.

    Args:
        model: whose windows of adaptive spans, too, programs depend on.
        run_eagerly: whether nothing is compiled, for tests and debugging. Default False.
    """

    def __init__(self, model: keras.Model, run_eagerly: bool = False) -> None:
        self._model = model
        self._run_eagerly = run_eagerly
        self._made: dict[tuple, Callable] = {}
        self._weights: tuple[int, ...] = ()

    def get(self, kind: tuple, make: Callable[[], Callable]) -> Callable:
        """Returns the program of a kind, of the function that `make` returns where there is none yet."""
        weights = tuple(map(id, self._model.variables))
        if weights != self._weights:  # replaced since the programs were traced, as by `enable_lora` and `quantize`
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
