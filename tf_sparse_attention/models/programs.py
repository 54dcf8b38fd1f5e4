"""Compiled functions of a model."""

import collections
import logging
from collections.abc import Callable, Sequence

import keras
from keras import ops

from tf_sparse_attention.types import Tensor


def compiled(function: Callable, models: Sequence[keras.Model]) -> Callable:
    """Compile a function that reads the current weights of models in each call.

    Args:
        function: function of nested tensors. It may run the models, but not change their weights.
        models: Keras models.

    Returns:
        Function of arrays or tensors. Each new shape compiles a program, which takes seconds. Other backends than
        TensorFlow and JAX run `function` without compilation.
    """
    program = _PROGRAMS.get(keras.backend.backend(), lambda function, models: function)(function, models)
    return lambda *arguments: program(*keras.tree.map_structure(ops.convert_to_tensor, arguments))


class Programs:
    """Cache of compiled programs of a model. Replaced weights clear the cache.

    Args:
        model: a Keras model.
        run_eagerly: whether to run without compilation, for tests and debugging. Default False.

    Attributes:
        counts: number of compiled programs by name.
    """

    def __init__(self, model: keras.Model, run_eagerly: bool = False) -> None:
        self._model = model
        self._run_eagerly = run_eagerly
        self._made: dict[tuple, Callable] = {}
        self._weights: dict[tuple, tuple[int, ...]] = {}
        self.counts: collections.Counter[str] = collections.Counter()

    def get(self, kind: tuple, function: Callable, models: Sequence[keras.Model] = ()) -> Callable:
        """Return the program with the key `kind`; a missing program is compiled from `function`.

        Args:
            kind: hashable key, whose first entry is the name of the program.
            function: the function to compile.
            models: further models that the function runs.
        """
        name, models = kind[0], (self._model, *models)
        # Variables are replaced after tracing by `enable_lora` and `quantize`, for example.
        weights = tuple(id(variable) for model in models for variable in model.variables)
        windows = tuple(window for model in models for window in model.computed_windows)
        key = kind, tuple(map(id, models))
        if weights != self._weights.get(key):
            self._weights[key] = weights
            self._made = {made: program for made, program in self._made.items() if made[:2] != key}
        made = *key, windows
        if made not in self._made:
            self._made[made] = function if self._run_eagerly else compiled(self._counted(name, function), models)
        return self._made[made]

    def _counted(self, name: str, function: Callable) -> Callable:
        """Wrap a function to count and log its compilations. The function runs once per compilation."""

        def traced(*arguments: Tensor) -> Tensor:
            self.counts[name] += 1
            shapes = [tuple(x.shape) for x in keras.tree.flatten(arguments[0])][:1]
            logging.debug("%s compiles program %d of %r, %s.", self._model.name, self.counts[name], name, shapes)
            return function(*arguments)

        return traced


def _on_tensorflow(function, models):
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def _on_jax(function, models):
    import jax

    def variables():
        return list({id(variable): variable for model in models for variable in model.variables}.values())

    @jax.jit
    def program(values, arguments):
        with keras.StatelessScope(state_mapping=list(zip(variables(), values, strict=True))):
            return function(*arguments)

    return lambda *arguments: program([variable.value for variable in variables()], arguments)


_PROGRAMS = {"tensorflow": _on_tensorflow, "jax": _on_jax}
