"""Detection of a Routing Transformer's architecture from the variable names and shapes of a checkpoint."""

import re
from collections.abc import Mapping

from tf_sparse_attention.convert.t2t.layout import (
    EMA,
    EMBEDDING,
    FEED_FORWARDS,
    HEADS,
    LOCAL,
    NORMS,
    ROUTING,
    TABLES,
    WITHIN,
    Layout,
    is_not_model_variable,
)
from tf_sparse_attention.types import Shape


def read_layout(shapes: Mapping[str, Shape]) -> Layout:
    """Return the `Layout` of a checkpoint.

    Args:
        shapes: dictionary of the shapes of all variables by name.

    Raises:
        ValueError: If the variables are not from a Routing Transformer, or if some are missing, unknown or have a wrong
            shape; the message lists all of them.
    """
    scope = _scope_of(shapes)
    own = {
        name.removeprefix(scope): tuple(shape)
        for name, shape in shapes.items()
        if name.startswith(scope) and not is_not_model_variable(name)
    }
    layout = _layout_of(scope, own)
    if layout.encoder_layers and layout.norm == "pre":
        raise ValueError(
            "`path` must be a post-norm model if it has an encoder, like all published models. "
            f"Received: variables called {NORMS['pre']}."
        )
    _check_complete(layout.shapes, own)
    return layout


def _scope_of(shapes):
    names = [name for name in shapes if not is_not_model_variable(name)]
    scopes = [name.removesuffix(EMBEDDING) for name in names if name == EMBEDDING or name.endswith("/" + EMBEDDING)]
    if len(scopes) != 1:
        raise ValueError(
            f"`path` must be a checkpoint of a Routing Transformer, with one variable .../{EMBEDDING}. "
            f"Received: {len(scopes)} such variables among {len(shapes)}: {_abbreviate(sorted(shapes))}."
        )
    outside = sorted(name for name in names if not name.startswith(scopes[0]))
    if outside:
        raise ValueError(f"`path` must not have variables of other models. Received: {_abbreviate(outside)}.")
    return scopes[0]


def _layout_of(scope, own):
    """Return the layout that the variables indicate; `_check_complete` checks for missing and unknown variables."""
    value_dim = _size(own, HEADS + "dense/kernel", 0)
    num_heads = max(_size(own, "v/kernel", 1) // value_dim, 1)
    encoder_layers, encoder_routed = _layers(own, "encoder"), _layers(own, "encoder", ROUTING)
    routed = _layers(own, "decoder", ROUTING)
    activation = next((kind for kind, names in FEED_FORWARDS.items() if _any(own, *names)), None)
    inner = None if activation is None else _size(own, FEED_FORWARDS[activation][0], 1)
    centroids = [_size(own, ROUTING + "means", axis) for axis in (0, 1)] if routed or encoder_routed else [0, 0]
    return Layout(
        scope=scope,
        vocabulary_size=_size(own, EMBEDDING, 0),
        embedding_dim=_size(own, EMBEDDING, 1),
        hidden_dim=_size(own, "emb_dense/kernel", 1),
        num_layers=max(_layers(own, "decoder"), default=0) + 1,
        intermediate_dim=inner,
        activation=activation,
        norm="pre" if _any(own, f"{NORMS['pre']}/layer_norm/layer_norm_scale") else "post",
        num_heads=num_heads,
        key_dim=_size(own, "q/kernel", 1) // num_heads,
        value_dim=value_dim,
        num_routing=centroids[0],
        num_clusters=centroids[1],
        routed=routed,
        has_averages=_any(own, *(ROUTING + name for name in EMA)),
        local_distance=_distance(own, LOCAL),
        routing_distance=_distance(own, ROUTING),
        encoder_layers=max(encoder_layers, default=-1) + 1,
        encoder_routed=encoder_routed,
    )


def _layers(own, stack, part=""):
    """Return the indices of the layers of a stack whose self-attention has variables that start with `part`."""
    found = (re.match(rf"{stack}_layer_(\d+)/self_attention/{WITHIN}{part}", name) for name in own)
    return tuple(sorted({int(match[1]) for match in found if match}))


def _matches(own, *endings):
    """Return the variables with one of the given names, inside or outside of layers."""
    return [
        name for name in own if any(name == ending or name.endswith("self_attention/" + ending) for ending in endings)
    ]


def _any(own, *endings):
    return bool(_matches(own, *endings))


def _size(own, ending, axis):
    """Return the size of an axis of a required variable."""
    found = _matches(own, ending)
    if not found or len(own[found[0]]) <= axis:
        shapes = [own[name] for name in found]
        raise ValueError(
            f"`path` must be a checkpoint of a Routing Transformer, with a variable .../{ending} of rank > {axis}. "
            f"Received: {f'shape {shapes[0]}' if found else 'no such variable'} among {len(own)} model variables."
        )
    return max(own[found[0]][axis], 1)


def _distance(own, heads):
    table = next((heads + name for name in TABLES if _any(own, heads + name)), None)
    return None if table is None else (_size(own, table, 0) - 1) // 2


def _check_complete(wanted, own):
    missing, unknown = sorted(set(wanted) - set(own)), sorted(set(own) - set(wanted))
    wrong = [
        f"{name} {own[name]}, not {wanted[name]}" for name in wanted if own.get(name, wanted[name]) != wanted[name]
    ]
    if missing or unknown or wrong:
        parts = {"missing": missing, "unknown": unknown, "wrong shape": wrong}
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in parts.items() if names)
        raise ValueError(f"`path` must have exactly the variables of one Routing Transformer. Received: {listed}.")


def _abbreviate(names, count=5):
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
