"""Type aliases of public arguments."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras

Tensor: TypeAlias = Any  # a backend tensor, a NumPy array, or a value that converts to a tensor
DType: TypeAlias = Any  # a name such as "float32", or a dtype of a backend
Size: TypeAlias = int | Tensor  # a length: an integer if it is known, else a scalar integer tensor
Seed: TypeAlias = int | keras.random.SeedGenerator
Shape: TypeAlias = Sequence[int | None]
Config: TypeAlias = dict[str, Any]  # the result of `get_config`
Initializer: TypeAlias = Any  # a name, a config or an instance, as in Keras; also for the next two
Regularizer: TypeAlias = Any
Constraint: TypeAlias = Any
