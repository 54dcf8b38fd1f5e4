"""Attention weights of a model for a few queries at a time, in O(T H) memory."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.causality.comparison import to_numpy
from tf_sparse_attention.analysis.gradients import vector_jacobian_product
from tf_sparse_attention.analysis.replaced import replaced
from tf_sparse_attention.layers import AttentionLayer, MixedAttention
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass
class AttentionCall:
    """One call of an attention layer.

    Attributes:
        layer: the `AttentionLayer`.
        heads: argument of `compute_attention`: queries, keys, values and any additional tensors of the layer.
        masks: argument of `compute_attention`.
        causal: argument of `compute_attention`.
    """

    layer: AttentionLayer
    heads: tuple
    masks: Any
    causal: bool

    @property
    def values(self) -> list[Tensor]:
        """Values of the M key-value heads, (B, M, S, Hv); a layer may have several sets of keys and values."""
        return list(self.heads[2::3])

    @property
    def group_size(self) -> int:
        """Number of consecutive query heads that share keys and values, N / M."""
        return self.layer.num_heads // self.values[0].shape[1]

    def attend(self, values: Sequence[Tensor]) -> Tensor:
        """Return the outputs of the heads, (B, N, T, Hv), for the given values."""
        heads = list(self.heads)
        heads[2::3] = values
        output, _ = self.layer.compute_attention(tuple(heads), self.masks, self.causal)
        mask = self.masks.query_mask
        return output if mask is None else ops.where(mask[:, None, :, None], output, 0)

    def weights(self, gradients: Sequence[Tensor]) -> np.ndarray:
        """Return the sum of gradients of all values, (B, M, S, Hv) each, as (B, M, Hv, S)."""
        return np.moveaxis(np.sum([to_numpy(gradient) for gradient in gradients], axis=0), -1, -2)


@dataclasses.dataclass
class Attention:
    """One attention of a model, with one or more parts.

    Attributes:
        name: path of the layer.
        parts: list of `AttentionCall`.
    """

    name: str
    parts: list[AttentionCall]

    @property
    def kinds(self) -> list[str]:
        """Pattern of each head, such as "local" or "routing"."""
        names = [type(part.layer).__name__.removesuffix("Attention").lower() for part in self.parts]
        return [name for name, part in zip(names, self.parts, strict=True) for _ in range(part.layer.num_heads)]

    def rows(self, queries: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterate over the attention weights of a few queries at a time.

        A head's output is a weighted sum of values, so its derivative with respect to values gives the weights. Each
        backward pass computes exact weights of as many queries as a head has channels, for any pattern, in O(T H)
        memory. Heads that share values need separate passes, because their derivatives add up.

        Args:
            queries: int array of positions; None for all. Default: None.

        Yields:
            Pairs of positions, int (t,), and weights, NumPy float (B, N, t, S), 0 for keys that a query does not see.
        """
        num_rows = min(part.layer.value_dim for part in self.parts)
        queries = np.arange(self.parts[0].heads[0].shape[2]) if queries is None else np.asarray(queries)
        counts = [len(part.values) for part in self.parts]
        sizes = [part.group_size for part in self.parts]
        ends = np.cumsum(counts)
        own = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        outputs, pull_back = vector_jacobian_product(
            lambda values: [part.attend(values[at]) for part, at in zip(self.parts, own, strict=True)],
            [value for part in self.parts for value in part.values],
        )
        for first in range(0, len(queries), num_rows):
            chosen = queries[first : first + num_rows]
            weights: list[list[np.ndarray]] = [[] for _ in self.parts]
            for turn in range(max(sizes)):
                of_turn = [_one_hot_rows(*each, chosen, turn) for each in zip(outputs, sizes, strict=True)]
                gradients = pull_back(of_turn)
                for part, at, found in zip(self.parts, own, weights, strict=True):
                    found.append(part.weights(gradients[at])[:, :, : len(chosen)])
            by_part = [_side_by_side(found[:size]) for found, size in zip(weights, sizes, strict=True)]
            yield chosen, np.concatenate(by_part, axis=1)


def _one_hot_rows(output, group_size, queries, turn):
    """Return zeros (B, N, T, Hv) with a 1 in channel c at the c-th query, in one head of each group."""
    marks = np.zeros(output.shape[1:], "float32")
    marks[turn::group_size, queries, np.arange(len(queries))] = 1
    return ops.broadcast_to(ops.cast(marks, output.dtype), output.shape)


def _side_by_side(turns):
    """Interleave arrays (B, M, t, S), each with one head of every group, to (B, N, t, S)."""
    batch, groups, *sizes = turns[0].shape
    return np.stack(turns, axis=2).reshape(batch, groups * len(turns), *sizes)


def record_attentions(model: keras.layers.Layer, batch: Any) -> list[Attention]:
    """Return the attentions of a model in the order of their calls, a list of `Attention`.

    Args:
        model: Keras model or layer with attention layers of this library. An attention layer that supports only causal
            calls is called with a causal mask.
        batch: input of the model, an array or a structure of arrays.

    Raises:
        ValueError: If there are no attention layers, if a layer has heads that do not attend to tokens, or if `batch`
            has other items than arrays.
    """
    alone = isinstance(model, AttentionLayer | MixedAttention)
    _check_batch(batch, [batch] if alone else keras.tree.flatten(batch))
    must_be_causal = alone and model.pattern is not None and model.pattern.must_be_causal
    causal = {"use_causal_mask": True} if must_be_causal else {}
    if not model.built:  # build first, so that no symbolic build call is recorded
        model(batch, training=False, **causal)
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    owners = {id(part): layer for layer in layers if isinstance(layer, MixedAttention) for part in layer.parts}
    found: list[Attention] = []

    def recording(layer):
        compute_attention = layer.compute_attention

        def record(heads, masks, causal, *options):
            part = AttentionCall(layer, heads, masks, causal)
            owner = owners.get(id(layer), layer)
            is_next = owner is not layer and layer is not owner.parts[0]
            found[-1].parts.append(part) if is_next else found.append(Attention(owner.path or owner.name, [part]))
            return compute_attention(heads, masks, causal, *options)

        return record

    attending = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    for layer in attending:
        if layer.num_pattern_heads != layer.num_heads:
            raise ValueError(
                f"`model` must have keys and values for each head. Received: {layer.name}, where only "
                f"{layer.num_pattern_heads} of {layer.num_heads} heads attend to tokens."
            )
    with replaced([(layer, "compute_attention", recording(layer)) for layer in attending]):
        model(batch, training=False, **causal)
    if not found:
        raise ValueError(f"`model` must have attention layers of this library. Received: {model.name} without any.")
    return found


def _check_batch(batch, inputs):
    """Raise a `ValueError` unless all inputs of a batch are arrays or None, with at least one array."""
    given = [x for x in inputs if x is not None]
    if not given or not all(hasattr(x, "shape") for x in given):
        raise ValueError(
            "`batch` must be an input of the model: an array or a structure of arrays. "
            f"Received: batch of type {type(batch).__name__}."
        )
