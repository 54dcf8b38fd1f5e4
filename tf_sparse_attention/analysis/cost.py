"""Cost of attention at a sequence length: operations and bytes of matrix products."""

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
    """Cost of the matrix products of one layer, in a forward pass over one sequence.

    Attributes:
        layer: path of the layer; "other layers" for everything except attention.
        kind: class name of the layer.
        num_operations: number of multiplications and additions.
        num_bytes: bytes that the products read and write.
    """

    layer: str
    kind: str
    num_operations: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of all layers. `str(cost)` is a Markdown table.

    Attributes:
        rows: list of `LayerCost`.
        length: T, number of tokens.
    """

    rows: list[LayerCost]
    length: int

    @property
    def num_operations(self) -> int:
        """Total number of multiplications and additions."""
        return sum(row.num_operations for row in self.rows)

    @property
    def num_bytes(self) -> int:
        """Total bytes that all layers read and write."""
        return sum(row.num_bytes for row in self.rows)

    def table(self) -> str:
        """Return a Markdown table with a row per layer and a row of totals."""
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
    """Count the cost of a forward pass over one sequence from its traced program, without running it.

    Only matrix products count: projections, scores, weighted sums, centroid scores, feed-forward layers and logits.
    They are counted as computed, including masked slots. Sorts and gathers are not counted.

    Args:
        target: an attention layer of this library, built, or a built model with such layers.
        length: T, number of tokens.
        causal: for a single attention layer, whether later tokens are masked. None: masked if the layer can be causal.
            Must be None for a model.

    Returns:
        A `Cost`; `print` shows the table.

    Raises:
        ValueError: If `target` is not a built layer, has other inputs than one sequence, uses cross-attention, or
            multiplies matrices in loops (recurrent layers) or branches; if `causal` does not suit the layer; or if the
            backend is not TensorFlow or JAX.

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
        raise ValueError(f"`target` must be built: call it, or `build` it. Received: {target.name}, not built.")
    if isinstance(target, AttentionLayer | MixedAttention):
        parts = attention_layers(target)
        return Cost([_row(part, length, _hides_later(part, causal)) for part in parts], length)
    if causal is not None:
        raise ValueError(f"`causal` must be None for a model. Received: causal={causal}.")
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
        raise ValueError(f"`causal` must be None or False for {layer.name}, which is not causal. Received: True.")
    return can if causal is None else causal


def _noting(layer, calls):
    """Return `compute_attention` of a layer, wrapped to record the length and causality of each call."""
    compute = layer.compute_attention

    def compute_and_note(heads: Any, masks: Any, causal: bool, *others: Any, **named: Any) -> Any:
        query, key, value = heads[:3]
        lengths = {x.shape[2] for x in (query, key, value) if x is not None}
        if len(lengths) > 1:
            raise ValueError(
                "`target` must have only self-attention; cross-attention is not counted. "
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
    """Return the shape and dtype of the input of a model, as lists of one item."""
    if hasattr(target, "vocabulary_size"):
        return [(1, length)], ["int32"]
    given = keras.tree.flatten(getattr(target, "inputs", None) or [])
    if len(given) != 1 or len(given[0].shape) not in (2, 3):
        raise ValueError(
            "`target` must be an attention layer, a language model, or a functional model of one sequence. "
            f"Received: {target.name}."
        )
    return [(1, length, *given[0].shape[2:])], [keras.backend.standardize_dtype(given[0].dtype)]
