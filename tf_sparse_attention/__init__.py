"""Sparse attention for long sequences in Keras 3.

Public names are in the submodules below, for example `tsa.layers.RoutingAttention` and `tsa.models.LanguageModel`.
A submodule is imported on first use: the commands print their help without Keras, and on JAX the library works without
TensorFlow.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from tf_sparse_attention.backends import check_backend as _check_backend
from tf_sparse_attention.backends import require_tensorflow as _require_tensorflow
from tf_sparse_attention.version import __version__

if TYPE_CHECKING:
    from tf_sparse_attention import (  # noqa: F401
        analysis,
        convert,
        data,
        distribution,
        export,
        generation,
        layers,
        models,
        ops,
        optimizers,
        patterns,
    )

# What `from tf_sparse_attention import *` imports. `convert`, `data` and `export` need further packages.
__all__ = [
    "__version__",
    "analysis",
    "distribution",
    "generation",
    "layers",
    "models",
    "ops",
    "optimizers",
    "patterns",
]
_SUBMODULES = (*__all__[1:], "convert", "data", "export")


def __getattr__(name: str) -> ModuleType:
    if name not in _SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_backend()
    if name == "export":
        _require_tensorflow("`tf_sparse_attention.export`")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted(["__version__", *_SUBMODULES])
