"""Sparse attention for long sequences in Keras 3.

`tsa.layers.RoutingAttention`, `tsa.models.LanguageModel`, and so on: every public name lies in one of the parts below.
What needs TensorFlow (`convert`, `data`, `export`) is imported on first use: on JAX the library stands without it.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from tf_sparse_attention import analysis, generation, layers, models, ops, optimizers, patterns
from tf_sparse_attention.version import __version__

__all__ = ["__version__", "analysis", "generation", "layers", "models", "ops", "optimizers", "patterns"]

if TYPE_CHECKING:
    from tf_sparse_attention import convert, data, export  # noqa: F401

_ON_FIRST_USE = ("convert", "data", "export")


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_FIRST_USE])
