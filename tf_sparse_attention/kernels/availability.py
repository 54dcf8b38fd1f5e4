"""Kernels that attend without an array of scores: which one serves here, and what it is told.

A kernel computes queries and keys in one order, of which rules say by two slots, and by numbers that are known of both,
whether the pair may attend. Everything else is computed by plain operations, see `attend.attend`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import NamedTuple

import keras

from tf_sparse_attention.types import Tensor

MOSAIC = "mosaic"  # JAX on a TPU, see `mosaic.py`
TRITON = "triton"  # JAX on a GPU of NVIDIA, see `triton.py`
# Shorter sequences are computed as fast by plain operations, and would be padded to a block of the kernel.
SHORTEST, LONGEST = 256, 262144
_CHOSEN: contextvars.ContextVar[tuple["Kernel | None", ...]] = contextvars.ContextVar("kernels", default=())


class Kernel(NamedTuple):
    """A kernel, and whether it is interpreted: slowly, on any device, for tests."""

    name: str
    interpret: bool = False


class SpanRule(NamedTuple):
    """How much of a pair counts: clip((reach - distance) / ramp + 1, 0, 1), of the reach of its query.

    Attributes:
        ramp: see `ops.span.Span`.
        lead: what is taken from key slots, so that the distance is that of slots.
    """

    ramp: int
    lead: int


class SlotNumbers(NamedTuple):
    """What is known of slots beside their order, and which pairs attend by it.

    Attributes:
        rule: hashable function of two sequences of int arrays that broadcast, numbers of queries and of keys, to bool.
        queries, keys: tuples of int32 (B, 1 or N, T) and (B, 1 or N, S).
    """

    rule: Callable
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]


class SlotPairs(NamedTuple):
    """Which pairs of slots attend.

    Attributes:
        rule: hashable function of two int arrays that broadcast, slots of queries and of keys, to bool. It may have a
            `period`, by which query and key can move together without a change; `num_keys`, if only the
            first `num_keys` keys can be visible; and `rules`, those of which it is the union.
        limits: pair of integers; no key slot minus query slot that the rule allows is outside.
        numbers: `SlotNumbers`; a pair attends where both rules say so. None: where `rule` does.
        last: hashable function of the pair of slots and the pair of numbers to the pairs that count only where a query
            sees nothing else; or None.
        span: a `SpanRule`, or None.
        span_reach: float32 (B, N, T), that of each query.
        reach: how far most pairs reach, which decides on the blocks. None: as far as `limits`.
        soft_cap: c of c tanh(q . k / c) in place of q . k. None: no cap.
    """

    rule: Callable
    limits: tuple[int, int]
    numbers: SlotNumbers | None = None
    last: Callable | None = None
    span: SpanRule | None = None
    span_reach: Tensor | None = None
    reach: int | None = None
    soft_cap: float | None = None


def kernel_here() -> Kernel | None:
    """Returns the `Kernel` that serves on the backend and its devices, None for plain operations.

    There is one for TPUs of JAX, and for its GPUs of NVIDIA from Ampere on; none after
    `keras.config.disable_flash_attention()` and with `jax_enable_x64`.
    """
    if keras.backend.backend() != "jax":
        return None
    import jax

    # Numbers inside a kernel would be of 64 bits, which no device has there.
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]  # JAX adds its settings as it is imported
        return None
    if _CHOSEN.get():
        return _CHOSEN.get()[0]
    if keras.config.is_flash_attention_enabled() is False:
        return None
    if jax.default_backend() == "tpu":
        return Kernel(MOSAIC)
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
