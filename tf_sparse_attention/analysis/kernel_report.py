"""Report of the attention layers of a model that use fused kernels, with reasons for plain operations."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tf_sparse_attention.analysis.attention_layers import attention_layers
from tf_sparse_attention.analysis.replaced import replaced
from tf_sparse_attention.kernels.availability import (
    MOSAIC,
    TRITON,
    Decision,
    Kernel,
    UnsupportedByKernel,
    available_kernel,
    record_decisions,
    use_kernel,
)
from tf_sparse_attention.layers import AttentionLayer

DEVICES = {"tpu": MOSAIC, "gpu": TRITON}


@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """Implementation of one part of an attention layer.

    Attributes:
        layer: path of the layer.
        kind: class name of the layer.
        part: pattern, or "persistent vectors".
        kernel: "mosaic" on TPUs, "triton" on GPUs. None: plain operations.
        reason: reason for plain operations. Empty with a kernel.
    """

    layer: str
    kind: str
    part: str
    kernel: str | None
    reason: str


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """Implementation of each attention layer. `str(report)` is a Markdown table.

    Attributes:
        rows: list of `AttentionKernel`, in the order of computation.
    """

    rows: list[AttentionKernel]

    def table(self) -> str:
        """Return a Markdown table with a row per part of a layer."""
        lines = ["| layer | attention | part | implementation | reason |", "|---" * 5 + "|"]
        for row in self.rows:
            kernel = "plain operations" if row.kernel is None else f"kernel ({row.kernel})"
            lines.append(f"| {row.layer} | {row.kind} | {row.part} | {kernel} | {row.reason} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def kernel_report(
    target: keras.layers.Layer,
    input_shape: Sequence[int],
    training: bool = False,
    device: str | None = None,
    **arguments: Any,
) -> KernelReport:
    """Report whether each attention layer of a layer or model is computed with a fused kernel or with backend ops.

    The call is traced, not run. An unbuilt target is built first. Attention without a pattern, such as the compressed
    branch of `NativeSparseAttention`, has no row.

    Args:
        target: attention layer of this library, or a layer or model with such layers.
        input_shape: shape of the input, with the batch: (B, T) of token ids, (B, T, D) or (B, H, W, D).
        training: whether to trace the call with `training=True`, with dropout. Default False.
        device: "tpu" or "gpu" to report another device, which need not exist. None: the current device.
        **arguments: further arguments of the call, such as `use_causal_mask`.

    Returns:
        A `KernelReport`; `print` shows the table. If the backend is not JAX, or if there is no TPU or GPU, `reason`
        states this in each row.

    Raises:
        ValueError: if `device` is not "tpu", "gpu" or None, or if `target` has no attention layer of this library.

    Example:
        >>> layer = LocalAttention(2, 64, window=64, position="alibi", name="near")
        >>> print(kernel_report(layer, (1, 512, 128), use_causal_mask=True))
        | layer | attention | part | implementation | reason |
        |---|---|---|---|---|
        | near | LocalAttention | Window | plain operations | kernels need the JAX backend; the backend is tensorflow |
    """
    if device is not None and device not in DEVICES:
        raise ValueError(f'`device` must be "tpu", "gpu" or None. Received: device={device!r}.')
    if not isinstance(target, keras.layers.Layer):
        raise ValueError(f"`target` must be a layer or a model. Received: {target!r}.")
    tokens = keras.KerasTensor(tuple(input_shape), _input_dtype(target, len(input_shape)))
    if not target.built:
        target(tokens, training=training, **arguments)
    layers = attention_layers(target)
    if not layers:
        raise ValueError(f"`target` must have attention layers of this library. Received: {target.name} without any.")
    rows: list[AttentionKernel] = []
    switch: contextlib.AbstractContextManager = contextlib.nullcontext()
    if device is not None and keras.config.is_flash_attention_enabled() is not False:
        switch = use_kernel(Kernel(DEVICES[device]))
    with switch, replaced([(layer, "compute_attention", _recording(layer, rows)) for layer in layers]):
        _Trace(lambda x: target(x, training=training, **arguments)).symbolic_call(tokens)
    return KernelReport(list(dict.fromkeys(rows)))  # without duplicates of repeated calls or traces


class _Trace(keras.Operation):
    """Function of one tensor, traced by symbolic calls."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self._function = function

    def call(self, x: Any) -> Any:
        return self._function(x)


def _input_dtype(target, rank):
    """Return the dtype of the input of a layer or model."""
    given = keras.tree.flatten(getattr(target, "inputs", None) or [])
    if len(given) == 1:
        return given[0].dtype
    return "int32" if rank == 2 or hasattr(target, "vocabulary_size") else "float32"


def _recording(layer: AttentionLayer, rows: list[AttentionKernel]) -> Callable:
    """Return `compute_attention` of a layer that adds its implementations to `rows`."""
    compute = layer.compute_attention

    def compute_and_record(*args: Any, **kwargs: Any) -> Any:
        with record_decisions() as decisions:
            result = compute(*args, **kwargs)
        for decision in decisions or [Decision("all", None, _reason_without_decision())]:
            rows.append(AttentionKernel(layer.path or layer.name, type(layer).__name__, *decision))
        return result

    return compute_and_record


def _reason_without_decision():
    """Return the reason of a layer that never tries a kernel."""
    try:
        available_kernel()
    except UnsupportedByKernel as error:
        return str(error)
    return "the layer has no kernel"
