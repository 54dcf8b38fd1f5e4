"""Reads the architecture of a Routing Transformer from the names and shapes in a tensor2tensor checkpoint."""

import dataclasses
import functools
import re
from collections.abc import Mapping

from tf_sparse_attention.types import Shape

# Variables that are not the model's: of the optimizer, of the summaries, the step.
SLOTS = "training/"
DUMMIES = ("losses_avg/", "train_stats/")
STEP = "global_step"

EMBEDDING = "embeddings/embedding"
LAYER = "decoder_layer_{}/self_attention/"
HEADS = "self_attention/attention_nd/"
LOCAL = HEADS + "local_nd/"
ROUTING = HEADS + "cluster_attention/cluster_attention/"
TABLES = ("relative_positions_keys/embeddings", "relative_positions_values/embeddings")
EMA = ("ema_count", "ema_means")
FEED_FORWARDS = {
    "geglu": ("ffn/weight1/kernel", "ffn/weight2/kernel", "ffn/weight3/kernel"),
    "relu": ("ffn/conv1/kernel", "ffn/conv1/bias", "ffn/conv2/kernel", "ffn/conv2/bias"),
}
NORMS = {"post": "layer_postprocess", "pre": "layer_prepostprocess"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The sizes and parts of a model, as its variables have them.

    Attributes:
        scope: prefix of the names of the model's variables.
        vocabulary_size: number of token ids.
        embedding_dim: size of the embedding.
        hidden_dim: channels of the residual stream.
        num_layers: number of layers.
        intermediate_dim: inner size of the feed-forward, None without one.
        activation: activation of the feed-forward, "geglu" or "relu", None without one.
        norm: position of the layer norm, "post" or "pre".
        num_heads: number of heads of a layer, routed and local.
        key_dim: size of a head for queries and keys.
        value_dim: the same for values.
        num_routing: number of routed heads in layers that have them.
        num_clusters: number of clusters of a routed head.
        routed: indices of the layers with routed heads.
        has_averages: whether the checkpoint has the moving averages of the centroids.
        local_distance: maximal relative distance of local heads, None without relative positions.
        routing_distance: the same of routed heads.
    """

    scope: str
    vocabulary_size: int
    embedding_dim: int
    hidden_dim: int
    num_layers: int
    intermediate_dim: int | None
    activation: str | None
    norm: str
    num_heads: int
    key_dim: int
    value_dim: int
    num_routing: int
    num_clusters: int
    routed: tuple[int, ...]
    has_averages: bool
    local_distance: int | None
    routing_distance: int | None

    @property
    def num_local(self) -> int:
        """Local heads of a layer that has routed ones."""
        return self.num_heads - self.num_routing

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all variables that such a model has, by name without the scope."""
        shapes = {
            EMBEDDING: (self.vocabulary_size, self.embedding_dim),
            "emb_dense/kernel": (self.embedding_dim, self.hidden_dim),
            "emb_dense/bias": (self.hidden_dim,),
            "final_dense_2/kernel": (self.embedding_dim, self.vocabulary_size),
            "final_dense_2/bias": (self.vocabulary_size,),
        }
        if self.embedding_dim != self.hidden_dim:
            shapes |= {
                "final_dense_1/kernel": (self.hidden_dim, self.embedding_dim),
                "final_dense_1/bias": (self.embedding_dim,),
            }
        if self.norm == "pre":
            shapes |= {f"{NORMS['pre']}/layer_norm/layer_norm_{kind}": (self.hidden_dim,) for kind in ("scale", "bias")}
        for layer in range(self.num_layers):
            own = {**self._attention_shapes(layer in self.routed), **self._feed_forward_shapes()}
            shapes |= {LAYER.format(layer) + name: shape for name, shape in own.items()}
        return shapes

    def _attention_shapes(self, routes):
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        shapes: dict[str, tuple[int, ...]] = {
            "self_attention/q/kernel": (self.hidden_dim, keys),
            "self_attention/k/kernel": (self.hidden_dim, keys),
            "self_attention/v/kernel": (self.hidden_dim, values),
            "self_attention/output_transform/kernel": (values, self.hidden_dim),
            HEADS + "dense/kernel": (self.value_dim, self.value_dim),
        }
        sizes = self.key_dim, self.value_dim
        if self.local_distance is not None and not (routes and self.num_local == 0):
            rows = 2 * self.local_distance + 1
            shapes |= {LOCAL + name: (rows, size) for name, size in zip(TABLES, sizes, strict=True)}
        if not routes:
            return shapes
        centroids = self.num_routing, self.num_clusters, self.key_dim
        shapes[ROUTING + "means"] = centroids
        if self.has_averages:
            shapes |= {ROUTING + "ema_count": centroids[:2], ROUTING + "ema_means": centroids}
        if self.routing_distance is not None:
            rows = 2 * self.routing_distance + 1
            shapes |= {ROUTING + name: (rows, size) for name, size in zip(TABLES, sizes, strict=True)}
        return shapes

    def _feed_forward_shapes(self):
        outer, inner = self.hidden_dim, self.intermediate_dim
        kinds = {
            "geglu": ((outer, inner), (outer, inner), (inner, outer)),
            "relu": ((outer, inner), (inner,), (inner, outer), (outer,)),
        }
        shapes = {}
        if self.activation is not None:
            shapes = dict(zip(FEED_FORWARDS[self.activation], kinds[self.activation], strict=True))
        norm = NORMS[self.norm]
        for name in [norm] if self.activation is None else [norm, f"{norm}_1"]:
            shapes |= {f"{name}/layer_norm/layer_norm_{kind}": (outer,) for kind in ("scale", "bias")}
        return shapes


def read_layout(shapes: Mapping[str, Shape]) -> Layout:
    """Returns the `Layout` of a checkpoint.

    Args:
        shapes: dictionary of the shapes of all variables by name.

    Raises:
        ValueError: If this is no such checkpoint, or variables of the model are missing, unknown, or of shapes that do
            not match; the message lists them all.
    """
    scope = _scope_of(shapes)
    own = {
        name.removeprefix(scope): tuple(shape)
        for name, shape in shapes.items()
        if name.startswith(scope) and not is_not_model_variable(name)
    }
    _check_no_encoder(own)
    layout = _layout_of(scope, own)
    _check_complete(layout.shapes, own)
    return layout


def is_not_model_variable(name: str) -> bool:
    """Returns whether a variable is an optimizer's, a summary's, or the step."""
    return name == STEP or name.startswith((SLOTS, *DUMMIES))


def _scope_of(shapes):
    names = [name for name in shapes if not is_not_model_variable(name)]
    scopes = [name.removesuffix(EMBEDDING) for name in names if name == EMBEDDING or name.endswith("/" + EMBEDDING)]
    if len(scopes) != 1:
        raise ValueError(
            f"`path` must be a checkpoint of a Routing Transformer, with one variable called .../{EMBEDDING}. "
            f"Received: {len(scopes)} of them among {len(shapes)} variables, {_abbreviate(sorted(shapes))}."
        )
    outside = sorted(name for name in names if not name.startswith(scopes[0]))
    if outside:
        raise ValueError(f"`path` must have no variables of other models. Received: {_abbreviate(outside)}.")
    return scopes[0]


def _check_no_encoder(own):
    found = sorted(name for name in own if name.startswith("encoder_layer_") or "/enc_dec_attention/" in name)
    if found:
        raise ValueError(
            "`path` must be a checkpoint of a language model; one with an encoder is not converted. "
            f"Received: {_abbreviate(found)}."
        )


def _layout_of(scope, own):
    """Returns the layout that the variables suggest; `_check_complete` checks that all of them are there."""
    value_dim = _size(own, HEADS + "dense/kernel", 0)
    num_heads = max(_size(own, "self_attention/v/kernel", 1) // value_dim, 1)
    routed = _layers(own, ROUTING)
    activation = next((kind for kind, names in FEED_FORWARDS.items() if _any(own, *names)), None)
    inner = None if activation is None else _size(own, FEED_FORWARDS[activation][0], 1)
    centroids = [_size(own, ROUTING + "means", axis) for axis in (0, 1)] if routed else [0, 0]
    return Layout(
        scope=scope,
        vocabulary_size=_size(own, EMBEDDING, 0),
        embedding_dim=_size(own, EMBEDDING, 1),
        hidden_dim=_size(own, "emb_dense/kernel", 1),
        num_layers=max(_layers(own)) + 1,
        intermediate_dim=inner,
        activation=activation,
        norm="pre" if _any(own, f"{NORMS['pre']}/layer_norm/layer_norm_scale") else "post",
        num_heads=num_heads,
        key_dim=_size(own, "self_attention/q/kernel", 1) // num_heads,
        value_dim=value_dim,
        num_routing=centroids[0],
        num_clusters=centroids[1],
        routed=routed,
        has_averages=_any(own, *(ROUTING + name for name in EMA)),
        local_distance=_distance(own, LOCAL),
        routing_distance=_distance(own, ROUTING),
    )


def _layers(own, part=""):
    """Returns the indices of the layers with variables whose names continue with `part`."""
    found = (re.match(r"decoder_layer_(\d+)/self_attention/" + part, name) for name in own)
    return tuple(sorted({int(match[1]) for match in found if match}))


def _matches(own, *endings):
    """Returns the variables with one of these names, inside layers or not."""
    return [name for name in own if any(name == end or name.endswith("self_attention/" + end) for end in endings)]


def _any(own, *endings):
    return bool(_matches(own, *endings))


def _size(own, ending, axis):
    """Returns the size of an axis of a variable that must exist."""
    found = _matches(own, ending)
    if not found or len(own[found[0]]) <= axis:
        shapes = [own[name] for name in found]
        raise ValueError(
            f"`path` must be a checkpoint of a Routing Transformer, with a variable .../{ending} of more than {axis} "
            f"axes. Received: {f'shape {shapes[0]}' if found else 'none'} among {len(own)} variables of the model."
        )
    return max(own[found[0]][axis], 1)


def _distance(own, heads):
    found = _matches(own, *(heads + name for name in TABLES))
    return (own[found[0]][0] - 1) // 2 if found else None


def _check_complete(wanted, own):
    missing, unknown = sorted(set(wanted) - set(own)), sorted(set(own) - set(wanted))
    wrong = [
        f"{name} {own[name]}, not {wanted[name]}" for name in wanted if own.get(name, wanted[name]) != wanted[name]
    ]
    if missing or unknown or wrong:
        parts = {"missing": missing, "unknown": unknown, "of another shape": wrong}
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in parts.items() if names)
        raise ValueError(f"`path` must hold the variables of one Routing Transformer, no more and no fewer. {listed}.")


def _abbreviate(names, count=5):
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
