"""Sparse attention for long sequences in Keras 3.

Public names are in the submodules below, for example `tsa.layers.RoutingAttention` and `tsa.models.LanguageModel`.
`import tf_sparse_attention` registers all layers and models with Keras, so that `keras.models.load_model` finds them.
Other submodules are imported on first use. The commands import everything on first use, and print their help without
Keras. On JAX the library works without TensorFlow.
"""

import importlib
import os
import sys
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


def _is_command() -> bool:
    """Return whether this process is `tsa-...` or `python -m tf_sparse_attention....`."""
    arguments = getattr(sys, "orig_argv", [])
    module = arguments[arguments.index("-m") + 1] if "-m" in arguments[:-1] else ""
    return os.path.basename(sys.argv[0] if sys.argv else "").startswith("tsa-") or module.startswith(f"{__name__}.")


if not _is_command():
    _check_backend()
    from tf_sparse_attention import layers, models, optimizers  # which register their classes
