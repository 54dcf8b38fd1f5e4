"""Attention kernels of the current device, and the reasons why plain operations replace them."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

import keras

MOSAIC = "mosaic"  # JAX on a TPU, see `mosaic.py`
TRITON = "triton"  # JAX on an NVIDIA GPU, see `triton.py`
# Plain operations are as fast on shorter sequences, which a kernel pads to whole blocks.
MIN_LENGTH, MAX_LENGTH = 256, 262144


class UnsupportedByKernel(NotImplementedError):
    """Signal that no kernel computes a call; the message is the reason."""


class Kernel(NamedTuple):
    """An attention kernel.

    Attributes:
        name: "mosaic" or "triton".
        interpret: whether Pallas interprets it: slow, on any device, for tests.
    """

    name: str
    interpret: bool = False


class Decision(NamedTuple):
    """Implementation of one part of attention.

    Attributes:
        part: pattern, patterns of a union, or "persistent vectors".
        kernel: name of the kernel. None: plain operations.
        reason: reason for plain operations.
    """

    part: str
    kernel: str | None
    reason: str = ""


_KERNEL: contextvars.ContextVar[tuple[Kernel | None, ...]] = contextvars.ContextVar("kernel", default=())
_DECISIONS: contextvars.ContextVar[list[Decision] | None] = contextvars.ContextVar("decisions", default=None)


def available_kernel() -> Kernel:
    """Return the kernel of the backend and its devices.

    Raises:
        UnsupportedByKernel: without JAX, with `jax_enable_x64`, after `keras.config.disable_flash_attention()`, and on
            devices other than TPUs and NVIDIA GPUs from Ampere on.
    """
    if keras.backend.backend() != "jax":
        raise UnsupportedByKernel(f"kernels need the JAX backend; the backend is {keras.backend.backend()}")
    import jax

    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]  # JAX adds its settings at import
        raise UnsupportedByKernel("`jax_enable_x64` is set; kernels have no 64-bit integers")
    if _KERNEL.get():
        (kernel,) = _KERNEL.get()
        if kernel is None:
            raise UnsupportedByKernel("kernels are disabled in this context")
        return kernel
    if keras.config.is_flash_attention_enabled() is False:
        raise UnsupportedByKernel("flash attention is disabled in `keras.config`")
    platform = jax.default_backend()
    if platform == "tpu":
        return Kernel(MOSAIC)
    if platform != "gpu":
        raise UnsupportedByKernel(f"there is no TPU or GPU; the device is {platform}")
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    major = capability.partition(".")[0]
    if not (major.isdecimal() and int(major) >= 8):  # older GPUs do not multiply bfloat16 matrices
        raise UnsupportedByKernel(f"the GPU has compute capability {capability!r}; kernels start at 8.0, Ampere")
    return Kernel(TRITON)


@contextlib.contextmanager
def use_kernel(kernel: Kernel | None) -> Iterator[None]:
    """Use a kernel on any device within this context; None disables kernels."""
    token = _KERNEL.set((kernel,))
    try:
        yield
    finally:
        _KERNEL.reset(token)


@contextlib.contextmanager
def record_decisions() -> Iterator[list[Decision]]:
    """Collect a `Decision` for each attention computed within this context, in a list."""
    decisions: list[Decision] = []
    token = _DECISIONS.set(decisions)
    try:
        yield decisions
    finally:
        _DECISIONS.reset(token)


def record(decision: Decision) -> None:
    """Add a decision to the list of `record_decisions`, if there is one."""
    decisions = _DECISIONS.get()
    if decisions is not None:
        decisions.append(decision)
