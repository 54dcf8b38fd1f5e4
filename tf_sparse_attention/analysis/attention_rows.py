"""The attention weights of a model for a few queries at a time, in O(T H) memory."""

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
        heads: argument of `compute_attention`: queries, keys and values, and more where a layer has them.
        masks: argument of `compute_attention`.
        causal: argument of `compute_attention`.
    """

    layer: AttentionLayer
    heads: tuple
    masks: Any
    causal: bool

    @property
    def values(self) -> list[Tensor]:
        """The values of the key heads, (B, M, S, Hv); a layer may have several."""
        return list(self.heads[2::3])

    @property
    def group_size(self) -> int:
        """How many heads beside each other share their keys and values, N / M."""
        return self.layer.num_heads // self.values[0].shape[1]

    def attend(self, values: Sequence[Tensor]) -> Tensor:
        """Return the attended heads (B, N, T, Hv) for other values."""
        heads = list(self.heads)
        heads[2::3] = values
        output, _ = self.layer.compute_attention(tuple(heads), self.masks, self.causal)
        mask = self.masks.query_mask
        return output if mask is None else ops.where(mask[:, None, :, None], output, 0)

    def weights(self, gradients: Sequence[Tensor]) -> np.ndarray:
        """Return the gradients of the values, (B, M, S, Hv) each, as (B, M, Hv, S); a query attends to one of them."""
        return np.moveaxis(np.sum([to_numpy(gradient) for gradient in gradients], axis=0), -1, -2)


@dataclasses.dataclass
class Attention:
    """One attention of a model, of one part or more.

    Attributes:
        name: path of its layer.
        parts: list of `AttentionCall`.
    """

    name: str
    parts: list[AttentionCall]

    @property
    def kinds(self) -> list[str]:
        """The pattern of each head: "local", "routing" ..."""
        names = [type(part.layer).__name__.removesuffix("Attention").lower() for part in self.parts]
        return [name for name, part in zip(names, self.parts, strict=True) for _ in range(part.layer.num_heads)]

    def rows(self, queries: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterate over the weights of all keys for a few queries at a time.

        A head's output is a sum of values times weights, so that weights are its derivative: a backward pass gives as
        many queries as a head has channels, exactly, for any pattern, in O(T H) memory. Heads that share values take
        turns, as their sum would be the derivative.

        Args:
            queries: int array of positions; None for all. Default: None.

        Yields:
            Pairs of positions (t,) and weights, NumPy float (B, N, t, S), 0 for keys that a query does not see.
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
    """Return zeros like (B, N, T, Hv) with a 1 in channel c of the c-th of some queries, in one head of each group."""
    marks = np.zeros(output.shape[1:], "float32")
    marks[turn::group_size, queries, np.arange(len(queries))] = 1
    return ops.broadcast_to(ops.cast(marks, output.dtype), output.shape)


def _side_by_side(turns):
    """Return what heads have (B, N, t, S), of that of the first of each group, of the second ..., (B, M, t, S)."""
    batch, groups, *sizes = turns[0].shape
    return np.stack(turns, axis=2).reshape(batch, groups * len(turns), *sizes)


def record_attentions(model: keras.layers.Layer, batch: Any) -> list[Attention]:
    """Return the attentions of a model in the order of their calls, a list of `Attention`.

    Args:
        model: Keras model or layer with attention layers of this library. An attention layer itself is called with a
            causal mask if it is for causal calls alone.
        batch: what it is called with.

    Raises:
        ValueError: if there are none, or one whose heads share their keys and values, and for a batch that is no
            arrays.
    """
    alone = isinstance(model, AttentionLayer | MixedAttention)
    _check_batch(batch, [batch] if alone else keras.tree.flatten(batch))
    must_be_causal = alone and model.pattern is not None and model.pattern.must_be_causal
    causal = {"use_causal_mask": True} if must_be_causal else {}
    if not model.built:  # Keras would build it by a symbolic call, whose tensors are of no use afterwards
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
                f"`model` must have keys and values for each head. Received: {layer.name}, of whose {layer.num_heads} "
                f"heads {layer.num_pattern_heads} have some."
            )
    with replaced([(layer, "compute_attention", recording(layer)) for layer in attending]):
        model(batch, training=False, **causal)
    if not found:
        raise ValueError(f"`model` must have attention layers of this library. Received: {model.name} without.")
    return found


def _check_batch(batch, inputs):
    """Raise a `ValueError` unless the inputs that a batch has are arrays, of which some may be None."""
    given = [x for x in inputs if x is not None]
    if not given or not all(hasattr(x, "shape") for x in given):
        raise ValueError(
            "`batch` must be what the model is called with, an array or a structure of arrays. "
            f"Received: batch of type {type(batch).__name__}."
        )
