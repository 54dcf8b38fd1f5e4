"""Names for the types of public arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Tensor: TypeAlias = Any  # a tensor of the backend, a NumPy array, or what converts to one
Shape: TypeAlias = Sequence[int | None]
Masks: TypeAlias = Mapping[str, Tensor]
Config: TypeAlias = dict[str, Any]  # what `get_config` returns
Initializer: TypeAlias = Any  # a name, a config or an instance of what Keras calls so; likewise the next two
Regularizer: TypeAlias = Any
Constraint: TypeAlias = Any
