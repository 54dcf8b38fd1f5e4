"""What attention costs at a length: operations and bytes of its matrix products."""

import dataclasses
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.attention_layers import attention_layers
from tf_sparse_attention.analysis.products import products
from tf_sparse_attention.analysis.replaced import replaced
from tf_sparse_attention.layers import AttentionLayer, MixedAttention
from tf_sparse_attention.layers.attention.attention_checks import can_be_causal


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """The matrix products of one layer, in a forward pass of one sequence.

    Attributes:
        layer: path of the layer; "other layers" of what is no attention.
        kind: name of its class.
        num_operations: multiplications and additions.
        num_bytes: what the products read and write.
    """

    layer: str
    kind: str
    num_operations: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """The costs of all layers; as text, a table.

    Attributes:
        rows: list of `LayerCost`.
        length: T, tokens.
    """

    rows: list[LayerCost]
    length: int

    @property
    def num_operations(self) -> int:
        """Multiplications and additions of all layers."""
        return sum(row.num_operations for row in self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes that all layers read and write."""
        return sum(row.num_bytes for row in self.rows)

    def table(self) -> str:
        """Return a Markdown table, a row a layer, and their sum."""
        lines = [
            f"| layer | kind | million operations at {self.length:,} | megabytes read and written |",
            "|---" * 4 + "|",
        ]
        for row in self.rows:
            lines.append(f"| {row.layer} | {row.kind} | {row.num_operations / 1e6:,.1f} | {row.num_bytes / 1e6:,.1f} |")
        lines.append(f"| all | | {self.num_operations / 1e6:,.1f} | {self.num_bytes / 1e6:,.1f} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def cost(target: keras.layers.Layer, length: int, causal: bool | None = None) -> Cost:
    """Return what a forward pass over one sequence costs, counted in its program; nothing is run.

    Matrix products alone: projections, scores, weighted sums, scores of centroids, feed-forward layers, logits, as they
    are computed, slots that a mask hides included. Sorts and gathers are not in it.

    Args:
        target: an attention layer of this library, built, or a model with such layers.
        length: T, tokens.
        causal: of an attention layer by itself, whether later tokens are hidden. None: where they can be. A model calls
            its layers as it does.

    Returns:
        A `Cost`; `print` shows the table.

    Raises:
        ValueError: for what is no layer or is not built, a model whose inputs are not one sequence or that attends from
            one sequence to another, matrix products within loops (recurrent layers) or branches, a `causal` that is not
            for the layer, and on a backend other than TensorFlow and JAX.

    Example:
        >>> layer = LocalAttention(2, 8, window=64, name="near")
        >>> layer.build((None, None, 16))
        >>> print(cost(layer, length=4096))
        | layer | kind | million operations at 4,096 | megabytes read and written |
        |---|---|---|---|
        | near | LocalAttention | 33.6 | 10.5 |
        | all | | 33.6 | 10.5 |
    """
    checks.check_count("length", length)
    checks.check_optional_switch("causal", causal)
    if not isinstance(target, keras.layers.Layer):
        raise ValueError(f"`target` must be a layer or a model. Received: {target!r}.")
    if not target.built:
        raise ValueError(f"`target` must be built: call it, or `build` it. Received: {target.name}, which is not.")
    if isinstance(target, AttentionLayer | MixedAttention):
        parts = attention_layers(target)
        return Cost([_row(part, length, _hides_later(part, causal)) for part in parts], length)
    if causal is not None:
        raise ValueError(f"`causal` must be None for a model, which calls its layers. Received: causal={causal}.")
    calls: list[tuple[AttentionLayer, int, bool]] = []
    with replaced([(layer, "compute_attention", _noting(layer, calls)) for layer in attention_layers(target)]):
        whole = products(lambda x: target(x, training=False), *_inputs_of(target, length))
    rows = [_row(*call) for call in calls]
    operations = sum(each.num_operations for each in whole) - sum(row.num_operations for row in rows)
    num_bytes = sum(each.num_bytes for each in whole) - sum(row.num_bytes for row in rows)
    return Cost([*rows, LayerCost("other layers", "", operations, num_bytes)], length)


def _hides_later(layer, causal):
    can = can_be_causal(layer) and layer.pattern.causal_selection
    if causal and not can:
        raise ValueError(f"`causal` must be None or False for {layer.name}, which sees later tokens. Received: True.")
    return can if causal is None else causal


def _noting(layer, calls):
    """Return `compute_attention` of a layer that notes the length of a call, and whether it is causal."""
    compute = layer.compute_attention

    def compute_and_note(heads: Any, masks: Any, causal: bool, *others: Any, **named: Any) -> Any:
        query, key, value = heads[:3]
        lengths = {x.shape[2] for x in (query, key, value) if x is not None}
        if len(lengths) > 1:
            raise ValueError(
                "`target` must attend within one sequence; layers that attend to another are not counted. "
                f"Received: {layer.path or layer.name}, with lengths {sorted(lengths)}."
            )
        calls.append((layer, query.shape[2], causal))
        return compute(heads, masks, causal, *others, **named)

    return compute_and_note


def _row(layer, length, causal):
    found = products(
        lambda x: layer(x, use_causal_mask=causal, training=False), [(1, length, layer.num_features)], ["float32"]
    )
    totals = (sum(numbers) for numbers in zip(*found, strict=True))
    return LayerCost(layer.path or layer.name, type(layer).__name__, *totals)


def _inputs_of(target: Any, length: int) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the shape and dtype of the one input of a model."""
    if hasattr(target, "vocabulary_size"):
        return [(1, length)], ["int32"]
    given = keras.tree.flatten(getattr(target, "inputs", None) or [])
    if len(given) != 1 or len(given[0].shape) not in (2, 3):
        raise ValueError(
            "`target` must be an attention layer, a language model, or a functional model of one sequence. "
            f"Received: {target.name}."
        )
    return [(1, length, *given[0].shape[2:])], [keras.backend.standardize_dtype(given[0].dtype)]
