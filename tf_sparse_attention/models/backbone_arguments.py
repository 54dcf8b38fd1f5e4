"""Checks of the arguments of a backbone, and its inputs unpacked."""

from collections.abc import Sequence

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.models.attention_parts import parse_attention
from tf_sparse_attention.types import Config, Tensor

EMBEDDING_OPTIONS = ("cutoffs", "div_value", "grid", "sinusoidal")


def unpack(
    inputs: Tensor | dict[str, Tensor],
    padding_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    extra_mask_names: Sequence[str] = (),
) -> tuple[Tensor, Tensor | None, Tensor | None, dict[str, Tensor]]:
    """Unpacks the inputs of a model, a tensor or a dictionary.

    Args:
        inputs: token ids, or a dictionary with "token_ids" and any of "padding_mask", "segment_ids" and the names in
            `extra_mask_names`.
        padding_mask: where the inputs have none.
        segment_ids: likewise.
        extra_mask_names: names of masks that some attention takes.

    Returns:
        Token ids, padding mask, segment ids and a dictionary of the extra masks that are not None.
    """
    if not isinstance(inputs, dict):
        return inputs, padding_mask, segment_ids, {}
    optional = ("padding_mask", "segment_ids", *extra_mask_names)
    if "token_ids" not in inputs or set(inputs) - {"token_ids", *optional}:
        names = ", ".join(repr(name) for name in optional[:-1])
        raise ValueError(
            f"`inputs` must have the key 'token_ids' and may have {names} and {optional[-1]!r}. "
            f"Received: keys {sorted(inputs)}."
        )
    return (
        inputs["token_ids"],
        inputs.get("padding_mask", padding_mask),
        inputs.get("segment_ids", segment_ids),
        {name: inputs[name] for name in extra_mask_names if inputs.get(name) is not None},
    )


def extra_mask_names_of(blocks: Sequence[keras.layers.Layer]) -> tuple[str, ...]:
    """Returns the names of masks that the attention of only some blocks takes."""
    return tuple(dict.fromkeys(name for block in blocks for name in block.attention.extra_mask_names))


def masks_of_block(block: keras.layers.Layer, extra_masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the masks, by name, that the attention of a block takes."""
    return {name: extra_masks[name] for name in block.attention.extra_mask_names if name in extra_masks}


def check_arguments(arguments: Config) -> None:
    """Raises a `ValueError` for a wrong argument of `Backbone`, given by name."""
    for name in ("vocabulary_size", "num_layers", "hidden_dim"):
        checks.check_count(name, arguments[name])
    checks.check_optional_count("intermediate_dim", arguments["intermediate_dim"])
    checks.check_optional_count("embedding_dim", arguments["embedding_dim"])
    checks.check_count("num_local_layers", arguments["num_local_layers"], minimum=0)
    checks.check_count("memory_length", arguments["memory_length"], minimum=0)
    _check_embedding(arguments["embedding"], arguments["memory_length"])
    for name in ("dropout", "embedding_dropout", "activation_dropout", "token_dropout"):
        checks.check_rate(name, arguments[name])
    parse_attention(*(arguments[name] for name in ("attention", "num_layers", "num_local_layers")))


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
