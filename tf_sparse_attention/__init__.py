"""Sparse attention for long sequences in Keras 3.

`tsa.layers.RoutingAttention`, `tsa.models.LanguageModel`, and so on: every public name lies in one of the parts below.
Parts that need further packages (`convert`, `data`, `export`) are imported on first use: on JAX the library stands
without TensorFlow.
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

_ON_FIRST_USE = ("convert", "data", "export")


def __getattr__(name: str) -> ModuleType:
    if name == "export":
        _require_tensorflow("`tf_sparse_attention.export`")
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_FIRST_USE])
