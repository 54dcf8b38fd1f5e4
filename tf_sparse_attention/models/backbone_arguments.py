"""Checks of the arguments of a backbone, and its inputs unpacked."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.checks import check_dense
from tf_sparse_attention.models.attention_parts import parse_attention
from tf_sparse_attention.types import Config, Tensor

EMBEDDING_OPTIONS = ("cutoffs", "div_value", "grid", "sinusoidal")
ENCODER_INPUTS = ("encoder_sequence", "encoder_padding_mask", "encoder_segment_ids")  # of blocks with cross-attention


class Unpacked(NamedTuple):
    """The inputs of a backbone.

    Attributes:
        tokens: token ids, or features.
        padding_mask: bool (B, T), or None.
        segment_ids: int (B, T), or None.
        further: what only some blocks take, by name, none of them None.
    """

    tokens: Tensor
    padding_mask: Tensor | None
    segment_ids: Tensor | None
    further: dict[str, Tensor]


def unpack(
    inputs: Tensor | dict[str, Tensor],
    names: Sequence[str],
    padding_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> Unpacked:
    """Returns the inputs of a model, a tensor or a dictionary, as `Unpacked`.

    Args:
        inputs: token ids or features, or a dictionary.
        names: what `input_names_of` returned.
        padding_mask: where the inputs have none.
        segment_ids: likewise.

    Raises:
        ValueError: for wrong keys, and for ragged tensors.
    """
    named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    for name, x in {"padding_mask": padding_mask, "segment_ids": segment_ids, **named}.items():
        check_dense(name, x)
    if not isinstance(inputs, dict):
        return Unpacked(inputs, padding_mask, segment_ids, {})
    first, *optional = names
    if first not in inputs or set(inputs) - set(names):
        listed = ", ".join(repr(name) for name in optional[:-1])
        raise ValueError(
            f"`inputs` must have the key {first!r} and may have {listed} and {optional[-1]!r}. "
            f"Received: keys {sorted(inputs)}."
        )
    masks = inputs.get("padding_mask", padding_mask), inputs.get("segment_ids", segment_ids)
    further = {name: inputs[name] for name in optional[2:] if inputs.get(name) is not None}
    return Unpacked(inputs[first], *masks, further)


def input_names_of(blocks: Sequence[keras.layers.Layer], are_tokens: bool = True) -> tuple[str, ...]:
    """Returns the keys of a dictionary of inputs: the tokens or features, masks of all blocks, and what some take."""
    across = ENCODER_INPUTS if any(block.cross_attention is not None for block in blocks) else ()
    first = "token_ids" if are_tokens else "features"
    return (first, "padding_mask", "segment_ids", *extra_mask_names_of(blocks), *across)


def extra_mask_names_of(blocks: Sequence[keras.layers.Layer]) -> tuple[str, ...]:
    """Returns the names of masks that the attention of only some blocks takes."""
    return tuple(dict.fromkeys(name for block in blocks for name in block.attention.extra_mask_names))


def masks_of_block(block: keras.layers.Layer, extra_masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the masks, by name, that the attention of a block takes."""
    return {name: extra_masks[name] for name in block.attention.extra_mask_names if name in extra_masks}


def arguments_of_block(block: keras.layers.Layer, further: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the inputs, by name, that a block takes beside those that all take."""
    across = ENCODER_INPUTS if block.cross_attention is not None else ()
    return masks_of_block(block, further) | {name: further[name] for name in across if name in further}


def check_arguments(arguments: Config) -> None:
    """Raises a `ValueError` for a wrong argument of `Backbone`, given by name."""
    checks.check_optional_count("vocabulary_size", arguments["vocabulary_size"])
    for name in ("num_layers", "hidden_dim"):
        checks.check_count(name, arguments[name])
    checks.check_optional_count("intermediate_dim", arguments["intermediate_dim"])
    checks.check_optional_count("embedding_dim", arguments["embedding_dim"])
    checks.check_count("num_local_layers", arguments["num_local_layers"], minimum=0)
    checks.check_count("memory_length", arguments["memory_length"], minimum=0)
    _check_embedding(arguments["embedding"], arguments["memory_length"])
    for name in ("dropout", "embedding_dropout", "activation_dropout", "token_dropout"):
        checks.check_rate(name, arguments[name])
    if arguments["vocabulary_size"] is None:
        _check_without_vocabulary(arguments["embedding"] or {}, arguments["token_dropout"])
    parse_attention(*(arguments[name] for name in ("attention", "num_layers", "num_local_layers")))
    if arguments["cross_attention"] is not None:
        parse_attention(arguments["cross_attention"], arguments["num_layers"], name="cross_attention")


def _check_without_vocabulary(embedding, token_dropout):
    if "cutoffs" in embedding or token_dropout:
        raise ValueError(
            "`vocabulary_size` must be given with `token_dropout` and with 'cutoffs' of `embedding`, which are of ids. "
            f"Received: vocabulary_size=None, token_dropout={token_dropout}, embedding={embedding!r}."
        )


def _check_embedding(embedding, memory_length):
    if embedding is None:
        return
    if not isinstance(embedding, dict) or set(embedding) - set(EMBEDDING_OPTIONS):
        raise ValueError(
            f"`embedding` must be None or a dictionary with some of {list(EMBEDDING_OPTIONS)}. "
            f"Received: embedding={embedding!r}."
        )
    if "div_value" in embedding and "cutoffs" not in embedding:
        raise ValueError(
            f"`embedding` must have 'cutoffs' where it has 'div_value'. Received: embedding={embedding!r}."
        )
    if "sinusoidal" in embedding:
        checks.check_switch("embedding['sinusoidal']", embedding["sinusoidal"])
    if ("grid" in embedding or embedding.get("sinusoidal")) and memory_length:
        raise ValueError(
            "`memory_length` must be 0 with an embedding of positions, which count from the start of each segment. "
            f"Received: memory_length={memory_length}, embedding={embedding!r}."
        )
