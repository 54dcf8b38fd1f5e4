"""Maps the variables of a checkpoint to the weights of a `LanguageModel`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_sparse_attention.convert.t2t.layout import (
    EMBEDDING,
    FEED_FORWARDS,
    HEADS,
    LAYER,
    LOCAL,
    NORMS,
    ROUTING,
    TABLES,
    Layout,
)

# Our names, in the order of `FEED_FORWARDS`.
DENSE_LAYERS = {
    "geglu": ("gate/kernel", "inner/kernel", "output/kernel"),
    "relu": ("inner/kernel", "inner/bias", "output/kernel", "output/bias"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One weight of the model.

    Attributes:
        target: path of the weight, without the model's name.
        sources: names of the variables it is computed from, without the scope.
        shape: shape of the weight.
        change: how the values change, as text; "" if they do not.
        compute: function of the sources' values, NumPy arrays, that returns the weight's.
    """

    target: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    change: str
    compute: Callable[..., np.ndarray]


def identity(value: Any) -> Any:
    """Returns the value."""
    return value


def make_mapping(layout: Layout, share_qk: bool) -> list[Row]:
    """Returns the rows for all weights of a model.

    Args:
        layout: a `Layout`.
        share_qk: whether routed heads share queries and keys.

    Returns:
        List of `Row`.
    """
    shapes = layout.shapes
    pairs = [
        ("backbone/embedding/embeddings", EMBEDDING),
        ("backbone/projection/kernel", "emb_dense/kernel"),
        ("backbone/projection/bias", "emb_dense/bias"),
        ("backbone/final_norm/gamma", f"{NORMS['pre']}/layer_norm/layer_norm_scale"),
        ("backbone/final_norm/beta", f"{NORMS['pre']}/layer_norm/layer_norm_bias"),
        ("to_embedding/kernel", "final_dense_1/kernel"),
        ("to_embedding/bias", "final_dense_1/bias"),
        ("to_vocabulary/kernel", "final_dense_2/kernel"),
        ("to_vocabulary/bias", "final_dense_2/bias"),
    ]
    rows = _copied_rows(layout, "", "", [(target, name) for target, name in pairs if name in shapes])
    for layer in range(layout.num_layers):
        rows += _layer_rows(layout, layer, share_qk)
    return rows


def unused_names(layout: Layout, rows: list[Row]) -> list[str]:
    """Returns the names of variables of the model that no row uses."""
    return sorted(set(layout.shapes) - {name for row in rows for name in row.sources})


def _layer_rows(layout, layer, share_qk):
    source, target = LAYER.format(layer), f"backbone/block_{layer}/"
    return [
        *_attention_rows(layout, layer, share_qk, source, target + "attention/"),
        *_feed_forward_rows(layout, source, target),
    ]


def _feed_forward_rows(layout, source, target):
    norms = [("attention_norm", NORMS[layout.norm])]
    names = []
    if layout.activation is not None:
        norms.append(("feed_forward_norm", f"{NORMS[layout.norm]}_1"))
        names = [f"feed_forward/{ours}" for ours in DENSE_LAYERS[layout.activation]]
    pairs = list(zip(names, FEED_FORWARDS.get(layout.activation, ()), strict=True))
    for ours, theirs in norms:
        pairs += [(f"{ours}/gamma", f"{theirs}/layer_norm/layer_norm_scale")]
        pairs += [(f"{ours}/beta", f"{theirs}/layer_norm/layer_norm_bias")]
    return _copied_rows(layout, source, target, pairs)


def _copied_rows(layout, source, target, pairs):
    """Returns rows of weights that are copies of variables, given pairs of our name and theirs."""
    shapes = layout.shapes
    return [Row(target + ours, (source + theirs,), shapes[source + theirs], "", identity) for ours, theirs in pairs]


def _attention_rows(layout, layer, share_qk, source, target):
    """Returns the rows of one layer's heads: routed ones come first in the published kernels."""
    if layer not in layout.routed:
        return _local_rows(layout, range(layout.num_heads), source, target + "local_0/")
    routing, local = range(layout.num_routing), range(layout.num_routing, layout.num_heads)
    rows = _routing_rows(layout, routing, share_qk, source, target + "routing_0/")
    return rows + (_local_rows(layout, local, source, target + "local_1/") if local else [])


def _local_rows(layout, heads, source, target):
    rows = [
        _input_row(layout, "query", "q", heads, layout.key_dim, source, target),
        _input_row(layout, "key", "k", heads, layout.key_dim, source, target),
        _input_row(layout, "value", "v", heads, layout.value_dim, source, target),
        _output_row(layout, heads, source, target),
    ]
    return rows + _table_rows(layout, layout.local_distance, source + LOCAL, target)


def _routing_rows(layout, heads, share_qk, source, target):
    # The published code scales queries before the norm, where the epsilon matters; ours does not, so the kernel does.
    scale = layout.key_dim**-0.5
    rows = [_input_row(layout, "query", "q", heads, layout.key_dim, source, target, scale)]
    if not share_qk:
        rows.append(_input_row(layout, "key", "k", heads, layout.key_dim, source, target))
    rows += [
        _input_row(layout, "value", "v", heads, layout.value_dim, source, target),
        _output_row(layout, heads, source, target),
    ]
    rows += _table_rows(layout, layout.routing_distance, source + ROUTING, target)
    # Without moving averages each centroid counts as the average of one token, as in a new layer.
    state = [("centroids", "means"), ("sums", "ema_means" if layout.has_averages else "means")]
    state += [("counts", "ema_count")] if layout.has_averages else []
    return rows + _copied_rows(layout, source + ROUTING, target + "clusters/", state)


def _table_rows(layout, distance, source, target):
    pairs = zip(("relative_key", "relative_value"), TABLES, strict=True)
    return [] if distance is None else _copied_rows(layout, source, target, pairs)


def _input_row(layout, ours, theirs, heads, size, source, target, scale=None):
    """Returns the row of a projection to some heads: columns of the kernel for all heads."""
    columns = slice(heads[0] * size, (heads[-1] + 1) * size)
    shape = (layout.hidden_dim, len(heads), size)

    def compute(kernel):
        kernel = kernel[:, columns].reshape(shape)
        return kernel if scale is None else kernel * np.float32(scale)

    change = "" if len(heads) == layout.num_heads else f"columns {columns.start} to {columns.stop - 1}"
    if scale is not None:
        change = f"{change}, " * bool(change) + f"times {size}^-0.5"
    return Row(f"{target}{ours}/kernel", (f"{source}self_attention/{theirs}/kernel",), shape, change, compute)


def _output_row(layout, heads, source, target):
    """Returns the row of the output projection, with the matrix before it that all heads share folded in."""
    size, shape = layout.value_dim, (len(heads), layout.value_dim, layout.hidden_dim)
    rows = slice(heads[0] * size, (heads[-1] + 1) * size)

    def compute(kernel, shared):
        parts = kernel[rows].reshape(shape).astype("float64")
        return np.einsum("vw,nwd->nvd", shared.astype("float64"), parts).astype(kernel.dtype)

    change = "" if len(heads) == layout.num_heads else f"rows {rows.start} to {rows.stop - 1}, "
    names = f"{source}self_attention/output_transform/kernel", f"{source}{HEADS}dense/kernel"
    return Row(f"{target}attention_output/kernel", names, shape, f"{change}the shared matrix folded in", compute)
