"""Architecture of a Routing Transformer, with its variable names and shapes in a tensor2tensor checkpoint."""

import dataclasses
import functools

# Variables that are not weights: optimizer slots, summaries and the step.
SLOTS = "training/"
DUMMIES = ("losses_avg/", "train_stats/")
STEP = "global_step"

EMBEDDING = "embeddings/embedding"
LAYER = "{}_layer_{}/self_attention/"  # of an encoder or a decoder
WITHIN, ACROSS = "self_attention/", "enc_dec_attention/"  # self-attention and cross-attention
HEADS = "attention_nd/"
LOCAL = HEADS + "local_nd/"
ROUTING = HEADS + "cluster_attention/cluster_attention/"
TABLES = ("relative_positions_keys/embeddings", "relative_positions_values/embeddings")
EMA = ("ema_count", "ema_means")
FEED_FORWARDS = {
    "geglu": ("ffn/weight1/kernel", "ffn/weight2/kernel", "ffn/weight3/kernel"),
    "relu": ("ffn/conv1/kernel", "ffn/conv1/bias", "ffn/conv2/kernel", "ffn/conv2/bias"),
}
NORM_WEIGHTS = {"scale": "gamma", "bias": "beta"}  # from published names to ours
NORMS = {"post": "layer_postprocess", "pre": "layer_prepostprocess"}


def is_not_model_variable(name: str) -> bool:
    """Return whether a variable is an optimizer slot, a summary value or the step."""
    return name == STEP or name.startswith((SLOTS, *DUMMIES))


@dataclasses.dataclass(frozen=True)
class Stack:
    """The layers of an encoder or a decoder.

    Attributes:
        name: "encoder" or "decoder".
        num_layers: number of layers.
        routed: indices of the layers with routed heads.
        attentions: prefixes of the variables of self-attention and, in a decoder with an encoder, cross-attention.
    """

    name: str
    num_layers: int
    routed: tuple[int, ...]
    attentions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes and components of a model, as its variables determine them.

    Attributes:
        scope: prefix of the names of the model's variables.
        vocabulary_size: number of token ids.
        embedding_dim: size of the embedding.
        hidden_dim: channels of the residual stream.
        num_layers: number of layers of the decoder.
        intermediate_dim: inner size of the feed-forward, None without a feed-forward.
        activation: activation of the feed-forward, "geglu" or "relu", None without a feed-forward.
        norm: placement of the layer norm, "post" or "pre".
        num_heads: number of heads per layer, routed and local.
        key_dim: size of queries and keys per head.
        value_dim: size of values per head.
        num_routing: number of routed heads in layers with routed heads.
        num_clusters: number of clusters per routed head.
        routed: indices of the decoder's layers with routed heads.
        has_averages: whether the checkpoint has the moving averages of the centroids.
        local_distance: maximal relative distance of local heads in self-attention, None without relative positions.
        routing_distance: maximal relative distance of routed heads in self-attention, None without relative positions.
            Cross-attention has no positions.
        encoder_layers: number of layers of the encoder, 0 without an encoder.
        encoder_routed: indices of the encoder's layers with routed heads.
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
    encoder_layers: int = 0
    encoder_routed: tuple[int, ...] = ()

    @property
    def stacks(self) -> list[Stack]:
        """The encoder, if any, and the decoder."""
        if not self.encoder_layers:
            return [Stack("decoder", self.num_layers, self.routed, (WITHIN,))]
        encoder = Stack("encoder", self.encoder_layers, self.encoder_routed, (WITHIN,))
        return [encoder, Stack("decoder", self.num_layers, self.routed, (WITHIN, ACROSS))]

    @property
    def has_routing(self) -> bool:
        """Whether some layer has routed heads."""
        return bool(self.routed or self.encoder_routed)

    @property
    def num_skipped(self) -> int:
        """Number of layers before the first layer with routed heads, or of all layers without routed heads."""
        first = [stack.routed[0] for stack in self.stacks if stack.routed]
        return min(first, default=max(stack.num_layers for stack in self.stacks))

    @property
    def num_local(self) -> int:
        """Number of local heads in layers with routed heads."""
        return self.num_heads - self.num_routing

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all variables of the model, by name without the scope."""
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
            shapes |= {f"{NORMS['pre']}/layer_norm/layer_norm_{kind}": (self.hidden_dim,) for kind in NORM_WEIGHTS}
        for stack in self.stacks:
            for layer in range(stack.num_layers):
                own = self._feed_forward_shapes() | self._norm_shapes(len(stack.attentions))
                for scope in stack.attentions:
                    attention = self._attention_shapes(layer in stack.routed, has_positions=scope == WITHIN)
                    own |= {scope + name: shape for name, shape in attention.items()}
                shapes |= {LAYER.format(stack.name, layer) + name: shape for name, shape in own.items()}
        return shapes

    def _attention_shapes(self, routes, has_positions):
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        shapes: dict[str, tuple[int, ...]] = {
            "q/kernel": (self.hidden_dim, keys),
            "k/kernel": (self.hidden_dim, keys),
            "v/kernel": (self.hidden_dim, values),
            "output_transform/kernel": (values, self.hidden_dim),
            HEADS + "dense/kernel": (self.value_dim, self.value_dim),
        }
        sizes = self.key_dim, self.value_dim
        if has_positions and self.local_distance is not None and not (routes and self.num_local == 0):
            rows = 2 * self.local_distance + 1
            shapes |= {LOCAL + name: (rows, size) for name, size in zip(TABLES, sizes, strict=True)}
        if not routes:
            return shapes
        centroids = self.num_routing, self.num_clusters, self.key_dim
        shapes[ROUTING + "means"] = centroids
        if self.has_averages:
            shapes |= {ROUTING + "ema_count": centroids[:2], ROUTING + "ema_means": centroids}
        if has_positions and self.routing_distance is not None:
            rows = 2 * self.routing_distance + 1
            shapes |= {ROUTING + name: (rows, size) for name, size in zip(TABLES, sizes, strict=True)}
        return shapes

    def _feed_forward_shapes(self):
        outer, inner = self.hidden_dim, self.intermediate_dim
        kinds = {
            "geglu": ((outer, inner), (outer, inner), (inner, outer)),
            "relu": ((outer, inner), (inner,), (inner, outer), (outer,)),
        }
        if self.activation is None:
            return {}
        return dict(zip(FEED_FORWARDS[self.activation], kinds[self.activation], strict=True))

    def _norm_shapes(self, num_attentions):
        norms = self.norms(num_attentions + (self.activation is not None))
        return {f"{name}/layer_norm/layer_norm_{kind}": (self.hidden_dim,) for name in norms for kind in NORM_WEIGHTS}

    def norms(self, count: int) -> list[str]:
        """Return the names of the norms of a layer with `count` sublayers, in order."""
        return [NORMS[self.norm] + (f"_{number}" if number else "") for number in range(count)]
