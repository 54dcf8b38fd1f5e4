"""The attention weights of a model, some queries at a time, without a matrix of all queries and keys."""

import dataclasses

import numpy as np
from keras import ops

from tf_sparse_attention.analysis.causality_target import replaced, to_numpy
from tf_sparse_attention.analysis.gradients import vector_jacobian_product
from tf_sparse_attention.layers import AttentionLayer, MixedAttention


@dataclasses.dataclass
class Part:
    """One call of an attention layer.

    Attributes:
        layer: the `AttentionLayer`.
        arguments: what `attend_heads` got: query, key, value, masks, causal.
    """

    layer: AttentionLayer
    arguments: tuple

    def heads(self, value):
        """Returns the heads (B, N, T, Hv) for other values (B, N, S, Hv)."""
        query, key, _, masks, causal = self.arguments
        output = self.layer.attend_heads(query, key, value, masks, causal, False, False)[0]
        return output if masks.query_mask is None else ops.where(masks.query_mask[:, None, :, None], output, 0)

    def weights(self, gradient):
        """Returns the gradient of the values, of which a layer may have several (B, N, S, R Hv), as (B, N, Hv, S)."""
        gradient = to_numpy(gradient)
        values = gradient.reshape(*gradient.shape[:-1], -1, self.layer.value_dim)
        return np.moveaxis(values.sum(-2), -1, -2)  # a query attends to one of them


@dataclasses.dataclass
class Attention:
    """One attention of a model, of one part or more.

    Attributes:
        name: path of its layer.
        parts: list of `Part`.
    """

    name: str
    parts: list

    @property
    def kinds(self):
        """The pattern of each head: "local", "routing" ..."""
        names = [type(part.layer).__name__.removesuffix("Attention").lower() for part in self.parts]
        return [name for name, part in zip(names, self.parts, strict=True) for _ in range(part.layer.num_heads)]

    def rows(self, queries=None):
        """Iterates over the weights of some queries after others.

        A head's output is a sum of values times weights, so that weights are its derivative: a backward pass gives as
        many queries as a head has channels, exactly, for any pattern, in O(T H) memory.

        Args:
            queries: int array of positions. None: all.

        Yields:
            Pairs of positions (t,) and weights, NumPy float (B, N, t, S), 0 for keys that a query does not see.
        """
        num_rows = min(part.layer.value_dim for part in self.parts)
        queries = np.arange(self.parts[0].arguments[0].shape[2]) if queries is None else np.asarray(queries)
        values = [part.arguments[2] for part in self.parts]
        outputs, pull_back = vector_jacobian_product(
            lambda values: [part.heads(value) for part, value in zip(self.parts, values, strict=True)], values
        )
        for first in range(0, len(queries), num_rows):
            chosen = queries[first : first + num_rows]
            gradients = pull_back([_one_hot_rows(output, chosen) for output in outputs])
            weights = [part.weights(gradient) for part, gradient in zip(self.parts, gradients, strict=True)]
            yield chosen, np.concatenate([each[:, :, : len(chosen)] for each in weights], axis=1)


def _one_hot_rows(output, queries):
    """Returns zeros like (B, N, T, Hv) with a 1 in channel c of the c-th of some queries."""
    marks = np.zeros(output.shape[2:], "float32")
    marks[queries, np.arange(len(queries))] = 1
    return ops.broadcast_to(ops.cast(marks, output.dtype), output.shape)


def record_attentions(model, inputs):
    """Returns the attentions of a model in the order of their calls, a list of `Attention`.

    Args:
        model: Keras model or layer with attention layers of this library.
        inputs: what it is called with.

    Raises:
        ValueError: if there are none, or one whose heads share their keys and values.
    """
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    owners = {id(part): layer for layer in layers if isinstance(layer, MixedAttention) for part in layer.parts}
    found = []

    def recording(layer):
        attend_heads = layer.attend_heads

        def record(query, key, value, masks, causal, training, return_weights):
            part = Part(layer, (query, key, value, masks, causal))
            owner = owners.get(id(layer), layer)
            is_next = owner is not layer and layer is not owner.parts[0]
            found[-1].parts.append(part) if is_next else found.append(Attention(owner.path or owner.name, [part]))
            return attend_heads(query, key, value, masks, causal, training, return_weights)

        return record

    attending = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    for layer in attending:
        if layer.num_key_heads != layer.num_heads:
            raise ValueError(
                f"`model` must have keys and values for each head. Received: {layer.name}, of whose {layer.num_heads} "
                f"heads {layer.num_key_heads} have some."
            )
    with replaced([(layer, "attend_heads", recording(layer)) for layer in attending]):
        model(inputs, training=False)
    if not found:
        raise ValueError(f"`model` must have attention layers of this library. Received: {model.name} without.")
    return found
