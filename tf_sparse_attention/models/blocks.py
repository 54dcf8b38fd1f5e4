"""Transformer blocks of `Backbone` and `Encoder`, and their attention parts as user input, config data and layers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tf_sparse_attention import layers
from tf_sparse_attention.ops.random_bits import derived_seed

FORMS = (
    "a list of dictionaries or attention layers, one per part, or a list of such lists, one for each of the "
    "{num_layers} blocks"
)
SERIALIZED = ("module", "class_name", "config", "registered_name")  # keys of a serialized Keras layer


@dataclasses.dataclass(frozen=True)
class Part:
    """Attention layer of a block, described by its class and arguments.

    Attributes:
        kind: class of the layer.
        arguments: constructor arguments, or the config of a serialized layer.
        num_heads: number of heads.
        is_config: whether `arguments` is a complete config.
    """

    kind: type[keras.layers.Layer]
    arguments: dict
    num_heads: int | None
    is_config: bool = False

    def with_heads(self, num_heads: int) -> "Part":
        """Return a copy with another number of heads."""
        arguments = {**self.arguments, "num_heads": num_heads}
        return dataclasses.replace(self, arguments=arguments, num_heads=num_heads)

    def make(self, index: int, name: str, seed: int | None, dtype: Any) -> keras.layers.Layer:
        """Create the layer for block `index`; `name` and `seed` apply if the part does not set them."""
        arguments = dict(self.arguments)
        if self.is_config:
            if "seed" in arguments and arguments["seed"] is None:
                arguments["seed"] = seed
            return self.kind.from_config({**arguments, "dtype": dtype})
        arguments.setdefault("seed", seed)
        if arguments.get("heads") == "interleaved":
            arguments.setdefault("layer_index", index)
        arguments.setdefault("name", name)
        return self.kind(**arguments, dtype=dtype)


def serialize_attention(attention: Sequence[Any] | None) -> Any:
    """Serialize the layers in the `attention` of a model.

    Invalid values are returned unchanged; `parse_attention` rejects them.
    """
    if isinstance(attention, keras.layers.Layer):
        serialized = keras.saving.serialize_keras_object(attention)
        return {name: serialized[name] for name in SERIALIZED}
    if isinstance(attention, (list, tuple)):
        return [serialize_attention(part) for part in attention]
    return dict(attention) if isinstance(attention, dict) else attention


def map_parts(function: Callable[[Any], Any], attention: Sequence[Any]) -> list:
    """Apply `function` to each part of plain attention data."""
    return [
        [function(one) for one in part] if isinstance(part, (list, tuple)) else function(part) for part in attention
    ]


def all_parts(attention: Sequence[Any]) -> list:
    """Return the parts of all blocks of plain attention data as one list."""
    return [one for part in attention for one in (part if isinstance(part, (list, tuple)) else [part])]


def class_name(part: dict[str, Any]) -> str:
    """Return the class name of a part in plain data."""
    return part["class_name"] if "class_name" in part else part["layer"]


def parse_attention(
    attention: Sequence[Any], num_layers: int, num_local_layers: int = 0, name: str = "attention"
) -> list[list[Part]]:
    """Return a list of `Part` for each block.

    Args:
        attention: plain data: a list of parts, or a list of such lists, one per block.
        num_layers: number of blocks.
        num_local_layers: number of initial blocks with only the local part, which gets the heads of all parts.
        name: argument name for messages.

    Raises:
        ValueError: if `attention` or `num_local_layers` is invalid.
    """
    listed = isinstance(attention, (list, tuple)) and len(attention) > 0
    differ = listed and any(isinstance(part, (list, tuple)) for part in attention)
    blocks = attention if differ else [attention]
    is_valid = listed and all(isinstance(parts, (list, tuple)) and len(parts) > 0 for parts in blocks)
    if not is_valid or (differ and len(blocks) != num_layers):
        alone = ". Put the dictionary in a list" if isinstance(attention, dict) else ""
        forms = FORMS.format(num_layers=num_layers)
        raise ValueError(f"`{name}` must be {forms}{alone}. Received: {name}={attention!r:.100}.")
    made = [[parse_part(part, name) for part in parts] for parts in blocks]
    _check_num_local_layers(num_local_layers, num_layers, differ, made[0], attention)
    if differ:
        return made
    return [merge_into_local(made[0]) if index < num_local_layers else made[0] for index in range(num_layers)]


def parse_part(part: Any, name: str = "attention") -> Part:
    """Parse a part from plain data; `name` is the argument name for messages.

    Raises:
        ValueError: if the part is not an attention layer or has a dtype.
    """
    names = [kind for kind in layers.__all__ if _is_attention_layer(getattr(layers, kind))]
    if isinstance(part, dict) and part.get("layer") in names:
        if "dtype" in part:
            raise ValueError(f"`{name}` must not have a dtype; set `dtype` of the model. Received: {name}={part!r}.")
        arguments = {key: value for key, value in part.items() if key != "layer"}
        return Part(getattr(layers, part["layer"]), arguments, arguments.get("num_heads"))
    if isinstance(part, dict) and "class_name" in part:
        layer = _deserialized(part, name)
        if isinstance(layer, layers.AttentionLayer):
            return Part(type(layer), part["config"], layer.num_heads, is_config=True)
        if isinstance(layer, layers.MixedAttention):
            raise ValueError(
                f"`{name}` must list the parts of a `MixedAttention` instead of the layer. "
                f"Received: a MixedAttention with the parts {[type(one).__name__ for one in layer.parts]}."
            )
        if isinstance(layer, keras.layers.Layer):
            part = layer  # shorter in the message than its config
    raise ValueError(
        f"`{name}` must be a list of attention layers (`tsa.layers.AttentionLayer`, or its serialized form from "
        "`keras.saving.serialize_keras_object`) or of dictionaries, each with one of "
        f"{names} as 'layer'. Received: {part!r}."
    )


def merge_into_local(parts: Sequence[Part]) -> list[Part]:
    """Return only the local part, with the heads of all `parts`."""
    local = next(part for part in parts if part.kind is layers.LocalAttention)
    return [local.with_heads(sum(part.num_heads or 0 for part in parts))]


def list_block_parts(parts: Sequence[dict[str, Any]], num_layers: int, num_local_layers: int) -> list[list[dict]]:
    """List the parts of each block as plain data.

    Args:
        parts: dictionaries, the parts of a block.
        num_layers: number of blocks.
        num_local_layers: number of initial blocks with only the local part, which gets the heads of all parts.
    """
    local = [{**part, "num_heads": sum(one["num_heads"] for one in parts)} for part in parts]
    local = [part for part in local if part["layer"] == "LocalAttention"][:1]
    return [local] * num_local_layers + [list(parts)] * (num_layers - num_local_layers)


def make_attention(
    parts: Sequence[Part], index: int, seed: int | None, dtype: Any, name: str = "attention", mixed: bool = True
) -> keras.layers.Layer:
    """Create the attention layer of block `index`.

    Args:
        parts: list of `Part`.
        index: index of the block.
        seed: integer or None; seeds of the parts are derived from it.
        dtype: dtype policy.
        name: name of the layer.
        mixed: whether to wrap a single part in a `MixedAttention`, too.
    """
    seeds = [derived_seed(seed, number) for number in range(len(parts))]
    if len(parts) == 1 and not mixed:
        return parts[0].make(index, name, seeds[0], dtype)
    made = [
        part.make(index, f"{part.kind.__name__.removesuffix('Attention').lower()}_{number}", seeds[number], dtype)
        for number, part in enumerate(parts)
    ]
    return layers.MixedAttention(made, dtype=dtype, name=name)


def _is_attention_layer(kind):
    return issubclass(kind, layers.AttentionLayer) and kind is not layers.AttentionLayer


def _deserialized(part, name):
    try:
        return keras.saving.deserialize_keras_object(part)
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"`{name}` must have layers of registered classes. First import the module that registers them with "
            f"`keras.saving.register_keras_serializable`. Received: {part!r}. {error}"
        ) from error


def _check_num_local_layers(num_local_layers, num_layers, differ, parts, attention):
    if differ and num_local_layers:
        raise ValueError(
            "`num_local_layers` must be 0 if `attention` has a list of parts for each block. "
            f"Received: num_local_layers={num_local_layers}."
        )
    if num_local_layers >= num_layers and len(parts) > 1:
        raise ValueError(
            "`num_local_layers` must be less than `num_layers`. "
            f"Received: num_local_layers={num_local_layers}, num_layers={num_layers}."
        )
    if num_local_layers and any(part.num_heads is None for part in parts):
        raise ValueError(
            "`attention` must have parts with `num_heads` if `num_local_layers` is positive. "
            f"Received: num_local_layers={num_local_layers}, attention={attention!r}."
        )
    if num_local_layers and not any(part.kind is layers.LocalAttention for part in parts):
        raise ValueError(
            "`num_local_layers` must be 0 unless `attention` has a part 'LocalAttention'. "
            f"Received: num_local_layers={num_local_layers}, attention={attention!r}."
        )


ATTENTION, CROSS_ATTENTION, FEED_FORWARD = 0, 1, 2  # derived seeds of a block; dropout uses the seed itself


def make_blocks(
    attention: Sequence[Any],
    num_layers: int,
    dtype: Any,
    num_local_layers: int = 0,
    intermediate_dim: int | None = None,
    activation: str = "gelu",
    activation_dropout: float = 0.0,
    layer_norm_epsilon: float = 1e-6,
    seed: int | None = None,
    cross_attention: Sequence[Any] | None = None,
    mixed: bool = True,
    **arguments: Any,
) -> list[keras.layers.Layer]:
    """Create the blocks of a model, "block_0" and so on, without building them.

    Args:
        attention: plain data of the attention, see `parse_attention`.
        num_layers: number of blocks.
        dtype: dtype policy of all layers.
        num_local_layers: number of initial blocks with only the local part, which gets the heads of all parts.
        intermediate_dim: size inside the feed-forward. None: no feed-forward.
        activation: activation of the feed-forward.
        activation_dropout: dropout rate inside the feed-forward.
        layer_norm_epsilon: epsilon of the layer norms.
        seed: integer or None; seeds of all layers are derived from it.
        cross_attention: plain data of the cross-attention. None: no cross-attention.
        mixed: whether to wrap a single part in a `MixedAttention`, too.
        **arguments: other arguments of `TransformerBlock`.
    """
    blocks = []
    parsed = parse_attention(attention, num_layers, num_local_layers)
    across: Sequence[Any] = [None] * num_layers
    if cross_attention is not None:
        across = parse_attention(cross_attention, num_layers, name="cross_attention")
    for index, (parts, cross_parts) in enumerate(zip(parsed, across, strict=True)):
        block_seed = derived_seed(seed, 1, index)  # 0: the embeddings
        sublayers = {"attention": make_attention(parts, index, derived_seed(block_seed, ATTENTION), dtype, mixed=mixed)}
        if intermediate_dim is not None:
            sublayers["feed_forward"] = layers.FeedForward(
                intermediate_dim,
                activation,
                dropout=activation_dropout,
                seed=derived_seed(block_seed, FEED_FORWARD),
                dtype=dtype,
                name="feed_forward",
            )
        if cross_parts is not None:
            cross_seed = derived_seed(block_seed, CROSS_ATTENTION)
            sublayers["cross_attention"] = make_attention(
                cross_parts, index, cross_seed, dtype, name="cross_attention", mixed=mixed
            )
        common = {"epsilon": layer_norm_epsilon, "seed": block_seed, "dtype": dtype, "name": f"block_{index}"}
        blocks.append(layers.TransformerBlock(**sublayers, **arguments, **common))
    return blocks
