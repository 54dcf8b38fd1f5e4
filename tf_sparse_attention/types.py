"""Names for the types of public arguments."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras

Tensor: TypeAlias = Any  # a tensor of the backend, a NumPy array, or what converts to one
DType: TypeAlias = Any  # a name such as "float32", or what a backend has for it
Size: TypeAlias = int | Tensor  # a length: an integer where it is known, else a scalar integer tensor
Seed: TypeAlias = int | keras.random.SeedGenerator
Shape: TypeAlias = Sequence[int | None]
Config: TypeAlias = dict[str, Any]  # what `get_config` returns
Initializer: TypeAlias = Any  # a name, a config or an instance of what Keras calls so; likewise the next two
Regularizer: TypeAlias = Any
Constraint: TypeAlias = Any
