"""The arguments and inputs of a backbone, checked and taken apart."""

from tf_sparse_attention import checks, layers

EMBEDDING_OPTIONS = ("cutoffs", "div_value", "grid", "sinusoidal")


def unpack(inputs, padding_mask=None, segment_ids=None):
    """Returns token ids, padding mask and segment ids of a model's inputs, a tensor or a dictionary of them."""
    if not isinstance(inputs, dict):
        return inputs, padding_mask, segment_ids
    unknown = set(inputs) - {"token_ids", "padding_mask", "segment_ids"}
    if "token_ids" not in inputs or unknown:
        raise ValueError(
            "`inputs` must have the key 'token_ids' and may have 'padding_mask' and 'segment_ids'. "
            f"Received: keys {sorted(inputs)}."
        )
    return (
        inputs["token_ids"],
        inputs.get("padding_mask", padding_mask),
        inputs.get("segment_ids", segment_ids),
    )


def all_local(parts):
    """Returns the local part alone with the heads of all `parts`."""
    local = next(part for part in parts if part["layer"] == "LocalAttention")
    return [{**local, "num_heads": sum(part["num_heads"] for part in parts)}]


def _is_pattern(layer):
    return issubclass(layer, layers.AttentionLayer) and layer is not layers.AttentionLayer


def check_arguments(arguments):
    """Raises a `ValueError` for a wrong argument of `Backbone`, given by name."""
    for name in ("vocabulary_size", "num_layers", "hidden_dim"):
        checks.check_count(name, arguments[name])
    checks.check_optional_count("intermediate_dim", arguments["intermediate_dim"])
    checks.check_optional_count("embedding_dim", arguments["embedding_dim"])
    checks.check_count("skip_first", arguments["skip_first"], minimum=0)
    checks.check_count("memory_length", arguments["memory_length"], minimum=0)
    _check_embedding(arguments["embedding"], arguments["memory_length"])
    for name in ("dropout", "embedding_dropout", "activation_dropout", "token_dropout"):
        checks.check_rate(name, arguments[name])
    parts = arguments["attention"]
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(f"`attention` must be a list of dictionaries, one a part. Received: attention={parts!r}.")
    names = [name for name in layers.__all__ if _is_pattern(getattr(layers, name))]
    for part in parts:
        if not isinstance(part, dict) or part.get("layer") not in names:
            raise ValueError(
                f"`attention` must be a list of dictionaries, each with one of {names} under 'layer'. "
                f"Received: {part!r}."
            )
    if any("dtype" in part for part in parts):
        raise ValueError(f"`attention` must leave the dtype to `dtype` of the whole. Received: attention={parts!r}.")
    if arguments["skip_first"] >= arguments["num_layers"] and len(parts) > 1:
        raise ValueError(
            "`skip_first` must be smaller than `num_layers`, or no block has the heads of all parts. Received: "
            f"skip_first={arguments['skip_first']}, num_layers={arguments['num_layers']}."
        )
    if arguments["skip_first"] and not any(part["layer"] == "LocalAttention" for part in parts):
        raise ValueError(
            "`skip_first` must be 0 unless `attention` has a part 'LocalAttention' to take over the heads. "
            f"Received: skip_first={arguments['skip_first']}, attention={parts!r}."
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
            "`memory_length` must be 0 with an embedding of positions, which tells of the place in one segment alone. "
            f"Received: memory_length={memory_length}, embedding={embedding!r}."
        )
