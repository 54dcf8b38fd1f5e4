"""Input dictionaries of models."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from tf_sparse_attention.checks import check_dense
from tf_sparse_attention.types import Tensor

ENCODER_INPUTS = ("encoder_sequence", "encoder_padding_mask", "encoder_segment_ids")  # for blocks with cross-attention


class Unpacked(NamedTuple):
    """Inputs of a backbone.

    Attributes:
        tokens: token ids, or features.
        padding_mask: bool (B, T), or None.
        segment_ids: int (B, T), or None.
        further: additional inputs that only some blocks accept, by name.
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
    """Unpack the inputs of a model, a tensor or a dictionary.

    Args:
        inputs: token ids or features, or a dictionary.
        names: result of `list_input_names`.
        padding_mask: default if the dictionary has no "padding_mask".
        segment_ids: default if the dictionary has no "segment_ids".

    Raises:
        ValueError: if the dictionary has missing or unknown keys, or a tensor is ragged.
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


def list_input_names(blocks: Sequence[keras.layers.Layer], are_tokens: bool = True) -> tuple[str, ...]:
    """Return the allowed keys of an input dictionary; the first is required."""
    across = ENCODER_INPUTS if any(block.cross_attention is not None for block in blocks) else ()
    first = "token_ids" if are_tokens else "features"
    return (first, "padding_mask", "segment_ids", *collect_extra_mask_names(blocks), *across)


def collect_extra_mask_names(blocks: Sequence[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the names of masks that only some blocks accept."""
    return tuple(dict.fromkeys(name for block in blocks for name in block.attention.extra_mask_names))


def select_masks(block: keras.layers.Layer, extra_masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the extra masks that the attention of a block accepts, by name."""
    return {name: extra_masks[name] for name in block.attention.extra_mask_names if name in extra_masks}


def select_block_inputs(block: keras.layers.Layer, further: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the additional inputs that a block accepts, by name."""
    across = ENCODER_INPUTS if block.cross_attention is not None else ()
    return select_masks(block, further) | {name: further[name] for name in across if name in further}
