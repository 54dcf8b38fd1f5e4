"""Mapping from the variables of a checkpoint to the weights of a `LanguageModel` or a `SequenceToSequence`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_sparse_attention.convert.t2t.layout import (
    EMBEDDING,
    FEED_FORWARDS,
    HEADS,
    LAYER,
    LOCAL,
    NORM_WEIGHTS,
    NORMS,
    ROUTING,
    TABLES,
    WITHIN,
    Layout,
    Stack,
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
        sources: names of the variables that determine the weight, without the scope.
        shape: shape of the weight.
        change: description of how the values change; "" for a plain copy.
        compute: function from the values of the sources, NumPy arrays, to the value of the weight.
    """

    target: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    change: str
    compute: Callable[..., np.ndarray]


@dataclasses.dataclass(frozen=True)
class Heads:
    """The heads of one attention.

    Attributes:
        source: prefix of the variables.
        target: prefix of the weights.
        share_qk: whether routed heads share queries and keys.
        has_positions: whether there are tables of relative positions.
        flange: offset that the published code subtracts from distances when it reads the local table, in attention to
            later keys; 0 without an offset.
        max_distance: the largest distance in the local table of the model.
    """

    source: str
    target: str
    share_qk: bool
    has_positions: bool
    flange: int
    max_distance: int | None


def identity(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def make_mapping(layout: Layout, settings: Mapping[str, Any]) -> list[Row]:
    """Return the `Row` of each weight of a model.

    Args:
        layout: a `Layout`.
        settings: hparams of tensor2tensor by name.

    Returns:
        List of `Row`.
    """
    shapes, decoder = layout.shapes, "decoder/" if layout.encoder_layers else ""
    final = f"{NORMS['pre']}/layer_norm/layer_norm_"
    pairs = [
        ("backbone/embedding/embeddings", EMBEDDING),
        ("backbone/projection/kernel", "emb_dense/kernel"),
        ("backbone/projection/bias", "emb_dense/bias"),
        *((f"backbone/final_norm/{ours}", final + theirs) for theirs, ours in NORM_WEIGHTS.items()),
        ("to_embedding/kernel", "final_dense_1/kernel"),
        ("to_embedding/bias", "final_dense_1/bias"),
        ("to_vocabulary/kernel", "final_dense_2/kernel"),
        ("to_vocabulary/bias", "final_dense_2/bias"),
    ]
    rows = _copied_rows(layout, "", decoder, [(target, name) for target, name in pairs if name in shapes])
    for stack in layout.stacks:
        blocks = "encoder/" if stack.name == "encoder" else f"{decoder}backbone/"
        for layer in range(stack.num_layers):
            rows += _layer_rows(layout, settings, stack, layer, f"{blocks}block_{layer}/")
    return rows


def encoder_distance(settings: Mapping[str, Any]) -> int:
    """Return the largest distance that local heads of an encoder attend to."""
    return settings["query_shape"][0] + settings["memory_flange"][0] - 1


def _layer_rows(layout: Layout, settings: Mapping[str, Any], stack: Stack, layer: int, target: str) -> list[Row]:
    source, rows = LAYER.format(stack.name, layer), []
    for scope in stack.attentions:
        masked = scope == WITHIN and stack.name == "decoder"
        heads = Heads(
            source + scope,
            target + ("attention/" if scope == WITHIN else "cross_attention/"),
            share_qk=masked and bool(settings.get("share_qk")),
            has_positions=scope == WITHIN,
            flange=0 if masked else settings["memory_flange"][0],
            max_distance=layout.local_distance if masked else encoder_distance(settings),
        )
        rows += _attention_rows(layout, heads, layer in stack.routed)
    return rows + _other_rows(layout, len(stack.attentions), source, target)


def _other_rows(layout, num_attentions, source, target):
    """Return the rows of the feed-forward and the norms of a layer."""
    norms = ["attention_norm", "cross_attention_norm"][:num_attentions]
    pairs: list[tuple[str, str]] = []
    if layout.activation is not None:
        norms.append("feed_forward_norm")
        names = [f"feed_forward/{ours}" for ours in DENSE_LAYERS[layout.activation]]
        pairs += zip(names, FEED_FORWARDS[layout.activation], strict=True)
    for norm, published in zip(norms, layout.norms(len(norms)), strict=True):
        pairs += [
            (f"{norm}/{ours}", f"{published}/layer_norm/layer_norm_{kind}") for kind, ours in NORM_WEIGHTS.items()
        ]
    return _copied_rows(layout, source, target, pairs)


def _copied_rows(layout, source, target, pairs):
    """Return rows of weights that are copies of variables, given pairs of our name and the published name."""
    shapes = layout.shapes
    return [Row(target + ours, (source + theirs,), shapes[source + theirs], "", identity) for ours, theirs in pairs]


def _attention_rows(layout, heads, routes):
    """Return the rows of one attention; routed heads come first in the published kernels."""
    if not routes:
        return _local_rows(layout, heads, range(layout.num_heads), heads.target + "local_0/")
    routing, local = range(layout.num_routing), range(layout.num_routing, layout.num_heads)
    rows = _routing_rows(layout, heads, routing, heads.target + "routing_0/")
    return rows + (_local_rows(layout, heads, local, heads.target + "local_1/") if local else [])


def _local_rows(layout, heads, own, target):
    rows = _projection_rows(layout, heads, own, target)
    if not heads.has_positions or layout.local_distance is None:
        return rows
    copied = _table_rows(layout, heads.source + LOCAL, target)
    return rows + (copied if heads.flange == 0 else [_moved(row, layout.local_distance, heads) for row in copied])


def _projection_rows(layout, heads, own, target, has_key=True, query_scale=None):
    """Return the rows of the projections of some heads."""
    rows = [_input_row(layout, "query", own, layout.key_dim, heads.source, target, query_scale)]
    if has_key:
        rows.append(_input_row(layout, "key", own, layout.key_dim, heads.source, target))
    rows.append(_input_row(layout, "value", own, layout.value_dim, heads.source, target))
    return [*rows, _output_row(layout, own, heads.source, target)]


def _routing_rows(layout, heads, own, target):
    # The published code scales queries before it normalizes them, which matters because of epsilon. This library does
    # not scale them, so the scale is folded into the kernel.
    rows = _projection_rows(layout, heads, own, target, not heads.share_qk, layout.key_dim**-0.5)
    source = heads.source
    if heads.has_positions and layout.routing_distance is not None:
        rows += _table_rows(layout, source + ROUTING, target)
    # Without moving averages, each centroid counts as the average of one token, as in a new layer.
    state = [("centroids", "means"), ("sums", "ema_means" if layout.has_averages else "means")]
    state += [("counts", "ema_count")] if layout.has_averages else []
    return rows + _copied_rows(layout, source + ROUTING, target + "clusters/", state)


def _table_rows(layout, source, target):
    return _copied_rows(layout, source, target, zip(("relative_key", "relative_value"), TABLES, strict=True))


def _moved(row, published_distance, heads):
    """Return the row of a table of distances that the published code reads with an offset."""
    distances = np.arange(-heads.max_distance, heads.max_distance + 1)
    rows = np.clip(distances - heads.flange, -published_distance, published_distance) + published_distance
    shape, change = (len(rows), row.shape[1]), f"distances shifted by {heads.flange}"
    return dataclasses.replace(row, shape=shape, change=change, compute=lambda table: table[rows])


def _input_row(layout, name, heads, size, source, target, scale=None):
    """Return the row of the projection of some heads: columns of the joint kernel."""
    columns = slice(heads[0] * size, (heads[-1] + 1) * size)
    shape = (layout.hidden_dim, len(heads), size)

    def compute(kernel):
        kernel = kernel[:, columns].reshape(shape)
        return kernel if scale is None else kernel * np.float32(scale)

    change = "" if len(heads) == layout.num_heads else f"columns {columns.start} to {columns.stop - 1}"
    if scale is not None:
        change = f"{change}, " * bool(change) + f"times {size}^-0.5"
    published = f"{source}{name[0]}/kernel"  # "q", "k" or "v"
    return Row(f"{target}{name}/kernel", (published,), shape, change, compute)


def _output_row(layout, heads, source, target):
    """Return the row of an output projection; the preceding matrix, shared by all heads, is folded in."""
    size, shape = layout.value_dim, (len(heads), layout.value_dim, layout.hidden_dim)
    rows = slice(heads[0] * size, (heads[-1] + 1) * size)

    def compute(kernel, shared):
        parts = kernel[rows].reshape(shape).astype("float64")
        return np.einsum("vw,nwd->nvd", shared.astype("float64"), parts).astype(kernel.dtype)

    change = "" if len(heads) == layout.num_heads else f"rows {rows.start} to {rows.stop - 1}, "
    names = f"{source}output_transform/kernel", f"{source}{HEADS}dense/kernel"
    return Row(f"{target}attention_output/kernel", names, shape, f"{change}the shared matrix folded in", compute)
