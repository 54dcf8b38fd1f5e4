"""Kernels that attend without an array of scores: which one serves here, and what it is told.

A kernel computes queries and keys in one order, of which a rule says by two slots, and two groups, whether the pair may
attend. Everything else is computed by plain operations, see `attend.attend`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import NamedTuple

import keras

from tf_sparse_attention.types import Tensor

SPLASH = "splash"  # JAX on a TPU: jax.experimental.pallas.ops.tpu.splash_attention
TRITON = "triton"  # JAX on a GPU of NVIDIA: kernels of our own, see `triton.py`
# Shorter sequences are computed as fast by plain operations, and would be padded to a block of the kernel.
SHORTEST, LONGEST = 256, 262144
_CHOSEN: contextvars.ContextVar[tuple["Kernel | None", ...]] = contextvars.ContextVar("kernels", default=())


class Kernel(NamedTuple):
    """A kernel, and whether it is interpreted: slowly, on any device, for tests."""

    name: str
    interpret: bool = False


class SlotPairs(NamedTuple):
    """Which pairs of slots attend.

    Attributes:
        rule: hashable function of two int arrays that broadcast, slots of queries and of keys, to bool.
        limits: pair of integers; no key slot minus query slot that the rule allows is outside.
        query_groups, key_groups: int32 (B, 1 or N, T) and (B, 1 or N, S), which must be equal; both None: no groups.
        reach: how far most pairs reach, which decides on the blocks. None: as far as `limits`.
    """

    rule: Callable
    limits: tuple[int, int]
    query_groups: Tensor | None = None
    key_groups: Tensor | None = None
    reach: int | None = None


def kernel_here() -> Kernel | None:
    """Returns the `Kernel` that serves on the backend and its devices, None for plain operations.

    On TPUs of JAX splash attention, on its GPUs of NVIDIA from Ampere on kernels of our own; none after
    `keras.config.disable_flash_attention()`.
    """
    if keras.backend.backend() != "jax":
        return None
    if _CHOSEN.get():
        return _CHOSEN.get()[0]
    if keras.config.is_flash_attention_enabled() is False:
        return None
    import jax

    if jax.default_backend() == "tpu":
        return Kernel(SPLASH)
    return Kernel(TRITON) if jax.default_backend() == "gpu" and _is_ampere_or_later(jax.devices()[0]) else None


def _is_ampere_or_later(device):
    """Whether a GPU is one of NVIDIA that multiplies matrices of bfloat16: of compute capability 8.0 or later."""
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdecimal() and int(major) >= 8


@contextlib.contextmanager
def use_kernel(kernel: Kernel | None) -> Iterator[None]:
    """Context in which a kernel serves wherever it can, whatever the device is; None: none does."""
    token = _CHOSEN.set((kernel,))
    try:
        yield
    finally:
        _CHOSEN.reset(token)
