"""Importance of heads: the loss increase of a model without each head."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.attention_layers import attention_layers
from tf_sparse_attention.analysis.replaced import replaced
from tf_sparse_attention.models.metrics import language_model_loss
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class HeadLoss:
    """Loss increase without one head.

    Attributes:
        layer: path of the attention layer.
        head: index of the head in the layer.
        kind: class name of the layer.
        rise: increase of the loss if the head outputs zeros, in the unit of the loss (nats per token by default);
            negative if the model is better without the head.
    """

    layer: str
    head: int
    kind: str
    rise: float


@dataclasses.dataclass(frozen=True)
class HeadImportance:
    """Loss increase without each head. `str(importance)` is a Markdown table.

    Attributes:
        heads: list of `HeadLoss`.
        loss: loss with all heads, averaged over batches, in nats per token by default.
    """

    heads: list[HeadLoss]
    loss: float

    def table(self) -> str:
        """Return a Markdown table with a row per layer and the loss increase without each head, in order."""
        lines = ["| layer | heads | loss increase without each head |", "|---|---|---|"]
        for layer in dict.fromkeys(head.layer for head in self.heads):
            own = [head for head in self.heads if head.layer == layer]
            lines.append(f"| {layer} | {own[0].kind} | {', '.join(f'{head.rise:+.3f}' for head in own)} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.table()}\n\nLoss with all heads: {self.loss:.3f}"


def head_importance(
    model: keras.Model, batches: Iterable[Any], loss: Callable[[Tensor, Tensor], Tensor] | None = None
) -> HeadImportance:
    """Measure the loss increase of a model without each of its heads.

    The output of a head is replaced by zeros, without further training (Michel et al. 2019, "Are sixteen heads really
    better than one?"). Heads with the same function can each appear unimportant.

    Cost: one call of the model per head and batch.

    Args:
        model: Keras model with attention layers of this library.
        batches: pairs (inputs, targets), as for `fit`; further items of a batch are ignored.
        loss: function of targets and outputs that returns numbers. None: `tsa.models.language_model_loss()`.

    Returns:
        A `HeadImportance`; `print` shows the table.

    Raises:
        ValueError: If the model has no attention layers of this library, if `batches` is empty or has items that are
            not pairs, or if `loss` is not a function or does not return numbers.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 64}
        >>> model = LanguageModel(Backbone(258, 1, 16, [part], intermediate_dim=64, name="text"))
        >>> ids = np.arange(1, 41).reshape(2, 20)
        >>> print(head_importance(model, [(ids, ids)]))  # doctest: +ELLIPSIS
        | layer | heads | loss increase without each head |
        |---|---|---|
        | text/block_0/attention/local_0 | LocalAttention | ...
    """
    loss = language_model_loss() if loss is None else loss
    if not callable(loss):
        raise ValueError(f"`loss` must be None or a function of targets and outputs. Received: loss={loss!r}.")
    pairs = _pairs_of(batches)
    layers = attention_layers(model)
    if not layers:
        raise ValueError(f"`model` must have attention layers of this library. Received: {model.name} without any.")

    def mean_loss():
        losses = [loss(ops.convert_to_tensor(targets), model(inputs, training=False)) for inputs, targets in pairs]
        return float(np.mean([_mean_of(each) for each in losses]))

    whole, heads = mean_loss(), []
    for layer in layers:
        kind = type(layer).__name__
        for head in range(layer.num_heads):
            with replaced([(layer, "compute_attention", _without(layer, head))]):
                heads.append(HeadLoss(layer.path or layer.name, head, kind, mean_loss() - whole))
    return HeadImportance(heads, whole)


def _pairs_of(batches):
    """Return the inputs and the targets of each batch."""
    pairs = []
    for batch in batches if isinstance(batches, Iterable) else [batches]:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise ValueError(
                f"`batches` must be pairs of inputs and targets. Received: {type(batch).__name__} instead of a pair."
            )
        pairs.append(batch[:2])
    if not pairs:
        raise ValueError("`batches` must be pairs of inputs and targets. Received: none.")
    return pairs


def _mean_of(loss):
    """Return the mean of the result of a loss, as a number."""
    try:
        return ops.convert_to_numpy(ops.mean(loss))
    except (TypeError, ValueError):
        raise ValueError(f"`loss` must return numbers. Received: a loss that returned {loss!r}.") from None


def _without(layer, head):
    """Return `compute_attention` of a layer, wrapped to replace the output of one head by zeros."""
    compute = layer.compute_attention
    kept = (np.arange(layer.num_heads) != head)[:, None, None]

    def compute_others(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        output, weights = compute(*args, **kwargs)
        return ops.where(kept, output, 0), weights

    return compute_others
