"""Argument groups of `Backbone`, and checks of all arguments."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tf_sparse_attention import checks
from tf_sparse_attention.layers.transformer_block import NORMS
from tf_sparse_attention.models.blocks import parse_attention
from tf_sparse_attention.types import Config


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """Self-attention of the blocks of a `Backbone`.

    Attributes:
        parts: list of the attention layers of each block, in the order of their heads. A part is a dictionary with the
            name of a class of `tf_sparse_attention.layers` as "layer" and the arguments of that class. A part may also
            be an attention layer, or its serialized form from `keras.saving.serialize_keras_object`. Each block creates
            a new layer from the part, with the dtype of the model. For blocks with different attention, pass a list of
            such lists, one per block.
        num_local_layers: number of initial blocks with only local attention: `LocalAttention` gets the heads of all
            parts there. Must be less than `num_layers`, and 0 if `parts` has a list per block. Default 0.
        reproduce_reference: whether padding is masked only as keys, as in the published Routing Transformer; see
            `TransformerBlock`. Padding tokens are then assigned to clusters. Default False.
    """

    parts: Sequence[Any]
    num_local_layers: int = 0
    reproduce_reference: bool = False


@dataclasses.dataclass(frozen=True)
class EmbeddingOptions:
    """Embedding of the tokens and positions of a `Backbone`.

    Attributes:
        dim: size of the token embedding, or of the input features. A dense layer projects it to `hidden_dim`. None:
            `hidden_dim`, without a projection.
        cutoffs: cutoffs of an `AdaptiveEmbedding`, for ids in the order of their frequency. None: one table.
        div_value: ratio of vector sizes of consecutive clusters. None: default of `AdaptiveEmbedding`.
        grid: shape of a `GridEmbedding` of positions, which is added to the token embedding. None: no such embedding.
        sinusoidal: whether to add a `SinusoidalEmbedding` to the inputs of the first block. Default False.
    """

    dim: int | None = None
    cutoffs: Sequence[int] | None = None
    div_value: float | None = None
    grid: Sequence[int] | None = None
    sinusoidal: bool = False


@dataclasses.dataclass(frozen=True)
class NormOptions:
    """Normalization layers of a `Backbone`.

    Attributes:
        placement: "pre", "post" or "pre_and_post"; "pre_rms" and so on use RMS normalization; see `TransformerBlock`.
            With "pre" and "pre_and_post", another norm follows the last block. Default "pre".
        epsilon: epsilon of the norms. Default 1e-6.
    """

    placement: str = "pre"
    epsilon: float = 1e-6


@dataclasses.dataclass(frozen=True)
class DropoutOptions:
    """Dropout rates of a `Backbone`, in [0, 1).

    Attributes:
        residual: rate on the output of each sublayer. Default 0.
        embedding: rate on the embedded tokens. Default 0.
        activation: rate inside the feed-forward. Default 0.
        tokens: rate at which training replaces input ids by id 0. Default 0.
    """

    residual: float = 0.0
    embedding: float = 0.0
    activation: float = 0.0
    tokens: float = 0.0


GROUPS: dict[str, Any] = {
    "attention": AttentionOptions,
    "embedding": EmbeddingOptions,
    "norm": NormOptions,
    "dropout": DropoutOptions,
}
Options = TypeVar("Options")


def as_options(kind: type[Options], name: str, value: Any) -> Options:
    """Return the options of a group.

    Args:
        kind: class of the options.
        name: name of the argument, for messages.
        value: an object of the class, a dictionary of its attributes, or None for the defaults. The first attribute
            alone is accepted too, except for `EmbeddingOptions`.

    Raises:
        ValueError: if `value` is invalid.
    """
    if isinstance(value, kind):
        return value
    construct: Any = kind
    if value is None and kind is not AttentionOptions:
        return construct()
    fields = [field.name for field in dataclasses.fields(construct)]
    is_options = isinstance(value, Mapping) and not {"layer", "class_name"} & set(value)
    if not is_options and kind is not EmbeddingOptions:
        return construct(value)
    if not is_options or set(value) - set(fields) or (kind is AttentionOptions and "parts" not in value):
        raise ValueError(
            f"`{name}` must be {kind.__name__} or a dictionary with the keys {fields}. Received: {name}={value!r}."
        )
    return construct(**value)


def merge_arguments(arguments: Config, changes: Config) -> Config:
    """Merge changes into the arguments of `Backbone`.

    For each of the `GROUPS`, a dictionary in `changes` replaces only the options that it names, and an `...Options`
    object replaces the whole group. Any other value replaces only the first option of the group.
    """
    merged = {**arguments, **changes}
    for name, kind in GROUPS.items():
        if name in arguments and changes.get(name) is not None and not isinstance(changes[name], kind):
            change = changes[name] if isinstance(changes[name], Mapping) else {_first_field(kind): changes[name]}
            merged[name] = {**vars(as_options(kind, name, arguments[name])), **change}
    return merged


def _first_field(kind):
    return dataclasses.fields(kind)[0].name


def check_arguments(arguments: Config) -> None:
    """Raise a `ValueError` if an argument of `Backbone` is invalid; groups in `arguments` are option objects."""
    embedding, dropout = arguments["embedding"], arguments["dropout"]
    checks.check_optional_count("vocabulary_size", arguments["vocabulary_size"])
    for name in ("num_layers", "hidden_dim"):
        checks.check_count(name, arguments[name])
    checks.check_optional_count("intermediate_dim", arguments["intermediate_dim"])
    checks.check_count("memory_length", arguments["memory_length"], minimum=0)
    checks.check_choice("norm", arguments["norm"].placement, NORMS)
    _check_embedding(embedding, arguments["memory_length"])
    checks.check_rate("dropout", dropout.residual)
    for name in ("embedding", "activation", "tokens"):
        checks.check_rate(f"dropout.{name}", getattr(dropout, name))
    if arguments["vocabulary_size"] is None and (embedding.cutoffs is not None or dropout.tokens):
        raise ValueError(
            "`vocabulary_size` must not be None with `dropout.tokens` or `embedding.cutoffs`. "
            f"Received: vocabulary_size=None, dropout={dropout}, embedding={embedding}."
        )
    attention, num_layers = arguments["attention"], arguments["num_layers"]
    checks.check_count("attention.num_local_layers", attention.num_local_layers, minimum=0)
    parse_attention(attention.parts, num_layers, attention.num_local_layers)
    if arguments["cross_attention"] is not None:
        parse_attention(arguments["cross_attention"], num_layers, name="cross_attention")
    if arguments["seed"] is not None:
        checks.check_seed(arguments["seed"])


def _check_embedding(embedding, memory_length):
    checks.check_optional_count("embedding.dim", embedding.dim)
    checks.check_switch("embedding.sinusoidal", embedding.sinusoidal)
    if embedding.div_value is not None and embedding.cutoffs is None:
        raise ValueError(
            f"`embedding.cutoffs` must be given with `embedding.div_value`. Received: embedding={embedding}."
        )
    if (embedding.grid is not None or embedding.sinusoidal) and memory_length:
        raise ValueError(
            "`memory_length` must be 0 with position embeddings, because they restart in each segment. "
            f"Received: memory_length={memory_length}, embedding={embedding}."
        )
