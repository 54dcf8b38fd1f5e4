"""Which variable of a checkpoint goes where in a `LanguageModel`, and how it changes on the way."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tf_sparse_attention.convert.t2t_layout import EMBEDDING, HEADS, LAYER, LOCAL, NORMS, ROUTING, TABLES


@dataclasses.dataclass(frozen=True)
class Row:
    """One weight of the model.

    Attributes:
        target: path of the weight, below the model.
        sources: names of the variables it is made of, without the scope.
        shape: of the weight.
        change: what happens to the numbers, as text; "" for nothing.
        make: function of the sources' values, NumPy arrays, to that of the weight.
    """

    target: str
    sources: tuple
    shape: tuple
    change: str
    make: Callable


def unchanged(value):
    """Returns the value."""
    return value


def make_mapping(layout, share_qk):
    """Returns the rows for all weights of a model.

    Args:
        layout: a `Layout`.
        share_qk: whether queries serve as keys in routed heads.

    Returns:
        List of `Row`.
    """
    shapes = layout.shapes()
    ends = [
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
    rows = [Row(target, (name,), shapes[name], "", unchanged) for target, name in ends if name in shapes]
    for layer in range(layout.num_layers):
        rows += _layer_rows(layout, layer, share_qk)
    return rows


def unused_names(layout, rows):
    """Returns the names of variables of the model that no row reads."""
    return sorted(set(layout.shapes()) - {name for row in rows for name in row.sources})


def _layer_rows(layout, layer, share_qk):
    source, target = LAYER.format(layer), f"backbone/block_{layer}/"
    return [
        *_attention_rows(layout, layer, share_qk, source, target + "attention/"),
        *_feed_forward_rows(layout, source, target),
    ]


def _feed_forward_rows(layout, source, target):
    outer, inner = layout.hidden_dim, layout.intermediate_dim
    norm = NORMS[layout.norm] + "{}/layer_norm/layer_norm_{}"
    pairs = [
        (f"attention_norm/{ours}", norm.format("", theirs), (outer,))
        for ours, theirs in (("gamma", "scale"), ("beta", "bias"))
    ]
    if layout.activation is not None:
        pairs += [
            (f"feed_forward_norm/{ours}", norm.format("_1", theirs), (outer,))
            for ours, theirs in (("gamma", "scale"), ("beta", "bias"))
        ]
    if layout.activation == "geglu":
        pairs += [
            ("feed_forward/gate/kernel", "ffn/weight1/kernel", (outer, inner)),
            ("feed_forward/inner/kernel", "ffn/weight2/kernel", (outer, inner)),
            ("feed_forward/output/kernel", "ffn/weight3/kernel", (inner, outer)),
        ]
    if layout.activation == "relu":
        pairs += [
            ("feed_forward/inner/kernel", "ffn/conv1/kernel", (outer, inner)),
            ("feed_forward/inner/bias", "ffn/conv1/bias", (inner,)),
            ("feed_forward/output/kernel", "ffn/conv2/kernel", (inner, outer)),
            ("feed_forward/output/bias", "ffn/conv2/bias", (outer,)),
        ]
    return [Row(target + ours, (source + theirs,), shape, "", unchanged) for ours, theirs, shape in pairs]


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
    # Scaled as published before the norm, whose epsilon feels it; ours norms queries as they come.
    scale = layout.key_dim**-0.5
    rows = [_input_row(layout, "query", "q", heads, layout.key_dim, source, target, scale)]
    if not share_qk:
        rows.append(_input_row(layout, "key", "k", heads, layout.key_dim, source, target))
    rows += [
        _input_row(layout, "value", "v", heads, layout.value_dim, source, target),
        _output_row(layout, heads, source, target),
    ]
    rows += _table_rows(layout, layout.routing_distance, source + ROUTING, target)
    means, averages = (layout.num_routing, layout.num_clusters, layout.key_dim), layout.has_averages
    pairs = [("centroids", "means", means)]
    # Without averages of its own, the state is what one step of averaging from here would make it.
    pairs.append(("sums", "ema_means" if averages else "means", means))
    if averages:
        pairs.append(("counts", "ema_count", means[:2]))
    return rows + [
        Row(f"{target}clusters/{ours}", (source + ROUTING + theirs,), shape, "", unchanged)
        for ours, theirs, shape in pairs
    ]


def _table_rows(layout, distance, source, target):
    if distance is None:
        return []
    sizes = {"key": layout.key_dim, "value": layout.value_dim}
    return [
        Row(f"{target}relative_{side}", (source + table,), (2 * distance + 1, size), "", unchanged)
        for table, (side, size) in zip(TABLES, sizes.items(), strict=True)
    ]


def _input_row(layout, ours, theirs, heads, size, source, target, scale=None):
    """Returns the row of a projection to some of the heads: columns of the kernel of them all."""
    columns = slice(heads[0] * size, (heads[-1] + 1) * size)
    shape = (layout.hidden_dim, len(heads), size)

    def make(kernel):
        kernel = kernel[:, columns].reshape(shape)
        return kernel if scale is None else kernel * np.float32(scale)

    change = "" if len(heads) == layout.num_heads else f"columns {columns.start} to {columns.stop - 1}"
    if scale is not None:
        change = f"{change}, " * bool(change) + f"times {size}^-0.5"
    return Row(f"{target}{ours}/kernel", (f"{source}self_attention/{theirs}/kernel",), shape, change, make)


def _output_row(layout, heads, source, target):
    """Returns the row of the output projection, with the matrix folded in that all heads go through before it."""
    size, shape = layout.value_dim, (len(heads), layout.value_dim, layout.hidden_dim)
    rows = slice(heads[0] * size, (heads[-1] + 1) * size)

    def make(kernel, shared):
        parts = kernel[rows].reshape(shape).astype("float64")
        return np.einsum("vw,nwd->nvd", shared.astype("float64"), parts).astype(kernel.dtype)

    change = "" if len(heads) == layout.num_heads else f"rows {rows.start} to {rows.stop - 1}, "
    names = f"{source}self_attention/output_transform/kernel", f"{source}{HEADS}dense/kernel"
    return Row(f"{target}attention_output/kernel", names, shape, f"{change}the shared matrix folded in", make)
