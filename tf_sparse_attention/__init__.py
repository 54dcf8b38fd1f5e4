"""Sparse attention for long sequences in Keras 3.

Public names are in the submodules below, for example `tsa.layers.RoutingAttention` and `tsa.models.LanguageModel`.
Submodules that need more packages (`convert`, `data`, `export`) are imported on first use, so that the library works on
JAX without TensorFlow.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from tf_sparse_attention.backends import check_backend as _check_backend
from tf_sparse_attention.backends import require_tensorflow as _require_tensorflow
from tf_sparse_attention.version import __version__

_check_backend()

from tf_sparse_attention import analysis, distribution, generation, layers, models, ops, optimizers, patterns  # noqa: E402

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

if TYPE_CHECKING:
    from tf_sparse_attention import convert, data, export  # noqa: F401

_LAZY_SUBMODULES = ("convert", "data", "export")


def __getattr__(name: str) -> ModuleType:
    if name == "export":
        _require_tensorflow("`tf_sparse_attention.export`")
    if name in _LAZY_SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LAZY_SUBMODULES])
