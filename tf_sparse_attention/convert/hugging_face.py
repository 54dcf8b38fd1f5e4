"""Longformer and BigBird checkpoints in Hugging Face format: config.json and safetensors."""

import json
import math
import os
import pathlib
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.models import Encoder
from tf_sparse_attention.models.rebuilding import initialize_with_zeros

ROOTS = ("", "longformer.", "bert.")  # prefixes of the encoder in checkpoints of models with a task head
PARTS = ("embeddings.", "encoder.", "pooler.")
COUNTERS = ("position_ids", "token_type_ids")  # saved by older checkpoints
NAME_VARIANTS = {"pooler.dense.": "pooler.", ".gamma": ".weight", ".beta": ".bias"}
# From our names of layers to those of Hugging Face; "{}" is the index of a block.
BLOCK = "encoder.layer.{}."
LAYERS = {
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    **{f"attention/{name}": f"{BLOCK}attention.self.{name}" for name in ("query", "key", "value")},
    **{f"attention/global_{name}": f"{BLOCK}attention.self.{name}_global" for name in ("query", "key", "value")},
    "attention/attention_output": f"{BLOCK}attention.output.dense",
    "attention_norm": f"{BLOCK}attention.output.LayerNorm",
    "feed_forward/inner": f"{BLOCK}intermediate.dense",
    "feed_forward/output": f"{BLOCK}output.dense",
    "feed_forward_norm": f"{BLOCK}output.LayerNorm",
    "pooler": "pooler",
}
ACTIVATIONS = {
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
REQUIRED = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
REQUIRED_FOR = {"longformer": ("attention_window", "pad_token_id"), "big_bird": ("block_size", "num_random_blocks")}
# Minima of integers that arguments are computed from.
COUNTS = {"num_hidden_layers": 1, "hidden_size": 1, "num_attention_heads": 1, "block_size": 1, "num_random_blocks": 0}


def from_hugging_face(folder: str | os.PathLike, num_global: int = 64, dtype: Any = None) -> Encoder:
    """Return a Longformer or BigBird encoder with the weights of a checkpoint.

    Hidden states and pooled output match `LongformerModel` and `BigBirdModel` in inference. In inference, BigBird draws
    no random blocks: it counts the first block once more per random block. It uses dense attention for sequences of at
    most (5 + 2 * num_random_blocks) blocks. Here, training follows the same rules. A Longformer's states at padding
    positions differ from the published model only if no token is global. Task heads are not loaded.

    Args:
        folder: path of a local folder, as made by `huggingface_hub.snapshot_download`, with config.json and
            model.safetensors, or its shards with model.safetensors.index.json.
        num_global: maximal number of global tokens per sequence, for a Longformer. If more tokens are marked, the rest
            are not global, and states differ from the published model. Default: 64.
        dtype: dtype policy of the model; None for Keras's global policy. Default: None.

    Returns:
        An `Encoder`. Its inputs "token_ids", "padding_mask" and "token_type_ids" are the input_ids, attention_mask and
        token_type_ids of `transformers`. A Longformer also takes "global_mask", the global_attention_mask.

    Raises:
        ValueError: If the model is of another type, a setting is not supported, or weights are missing or unknown.
        ImportError: If `safetensors` is not installed.

    Example:
        encoder = tsa.convert.from_hugging_face(snapshot_download("allenai/longformer-base-4096"))
        states = encoder({"token_ids": ids, "padding_mask": mask, "global_mask": marks})["sequence_output"]
    """
    folder = pathlib.Path(folder)
    config = _read_json(folder / "config.json")
    arguments = encoder_arguments(config, num_global)
    sources = _encoder_tensors(_open_tensor_files(folder))
    with initialize_with_zeros():
        encoder = Encoder(**arguments, use_pooler="pooler.weight" in sources, dtype=dtype)
    targets = {source_name(weight.path): weight for weight in encoder.weights}
    if targets.keys() != sources.keys():
        raise ValueError(
            "`folder` must have exactly the weights that its config.json implies. Received: "
            f"missing {sorted(targets.keys() - sources.keys())}, unknown {sorted(sources.keys() - targets.keys())}."
        )
    for name, weight in targets.items():
        file, full_name = sources[name]
        weight.assign(_match_shape(file.get_tensor(full_name), name, weight))
    return encoder


def encoder_arguments(config: dict[str, Any], num_global: int) -> dict[str, Any]:
    """Return the arguments of `Encoder` for the content of a Hugging Face config.json."""
    if not isinstance(config, dict):
        raise ValueError(f"config.json must hold one JSON object. Received: a {type(config).__name__}.")
    kind = config.get("model_type")
    if kind not in tuple(REQUIRED_FOR):
        raise ValueError(f"`model_type` of config.json must be 'longformer' or 'big_bird'. Received: {kind!r}.")
    if config.get("hidden_act") not in tuple(ACTIVATIONS):
        raise ValueError(
            f"`hidden_act` of config.json must be one of {sorted(ACTIVATIONS)}. Received: {config.get('hidden_act')!r}."
        )
    required = [*REQUIRED, *REQUIRED_FOR[kind]]
    missing = [name for name in required if name not in config]
    if missing:
        raise ValueError(f"config.json of a {kind} must have {required}. Received: missing {missing}.")
    for name in (name for name in COUNTS if name in required):
        checks.check_count(name, config[name], COUNTS[name])
    if config.get("is_decoder"):
        raise ValueError("`is_decoder` of config.json must be false: only encoders are supported. Received: true.")
    own = _longformer(config, num_global) if kind == "longformer" else _big_bird(config)
    return {
        "vocabulary_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "hidden_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "max_length": config["max_position_embeddings"],
        "num_token_types": config["type_vocab_size"],
        "activation": ACTIVATIONS[config["hidden_act"]],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "dropout": config["hidden_dropout_prob"],
        **own,
    }


def _heads(config):
    return {
        "layer": "GlobalLocalAttention",
        "num_heads": config["num_attention_heads"],
        "key_dim": config["hidden_size"] // config["num_attention_heads"],
        "dropout": config["attention_probs_dropout_prob"],
    }


def _longformer(config, num_global):
    windows = config["attention_window"]
    windows = windows if isinstance(windows, list) else [windows] * config["num_hidden_layers"]
    if len(windows) != config["num_hidden_layers"] or not all(isinstance(window, int) for window in windows):
        raise ValueError(
            f"`attention_window` of config.json must have one integer per layer, {config['num_hidden_layers']} in all. "
            f"Received: {windows}."
        )
    common = {**_heads(config), "num_global": num_global, "own_projections": True}
    # `window` counts half of the published window on each side, plus the query itself.
    attention = [[{**common, "window": window // 2 + 1}] for window in windows]
    return {"attention": attention, "padding_id": config["pad_token_id"]}


def _big_bird(config):
    block, copies = config["block_size"], config["num_random_blocks"]
    attention = {**_heads(config), "use_bias": config.get("use_bias", True), "use_output_bias": True}
    attention |= {"block_size": block, "num_blocks_before": 1, "num_blocks_after": 1, "num_global": 2 * block}
    if config.get("attention_type", "block_sparse") == "block_sparse":
        attention["dense_length"] = (5 + 2 * copies) * block
    else:
        attention["dense_length"] = config["max_position_embeddings"]
    return {
        "attention": [attention],
        "embedding_scale": config["hidden_size"] ** 0.5 if config.get("rescale_embeddings") else 1.0,
        "global_block": block,
        "first_block_count": 1 + copies,
    }


def source_name(path: str) -> str:
    """Return the checkpoint name of the `Encoder` weight at a path."""
    *parents, weight = path.split("/")
    index = next((part.removeprefix("block_") for part in parents if part.startswith("block_")), None)
    layer = "/".join(part for part in parents if not part.startswith(("block_", "encoder")))
    return f"{LAYERS[layer]}.{'bias' if weight in ('bias', 'beta') else 'weight'}".format(index)


def _read_json(path):
    if not path.is_file():
        raise ValueError(
            f"`folder` must be a local folder with a {path.name}, as made by huggingface_hub.snapshot_download. "
            f"Received: {path.parent}."
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"`folder` must have a valid JSON file {path.name}. Received: {path}: {error}.") from error


def _open_tensor_files(folder):
    """Return the open safetensors file of each tensor, by tensor name."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "`from_hugging_face` needs safetensors: pip install 'tf_sparse_attention[safetensors]'"
        ) from error
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        try:
            names = sorted({str(name) for name in _read_json(index)["weight_map"].values()})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"`folder` must have a `weight_map` in {index.name}. Received: {folder}.") from error
    elif single.is_file():
        names = [single.name]
    else:
        raise ValueError(
            "`folder` must have model.safetensors or its index; `save_pretrained` of transformers writes them. "
            f"Received: {folder}."
        )
    found = {}
    for name in names:
        try:
            file = safe_open(folder / name, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"`folder` must have complete safetensors files. Received: {name}: {error}.") from error
        found.update(dict.fromkeys(file.keys(), file))
    return found


def _encoder_tensors(files):
    """Return pairs of file and full name, by name in the encoder; drop task heads and saved position ids."""
    root = next((root for root in ROOTS if any(name.startswith(f"{root}embeddings.") for name in files)), "")
    found = {}
    for full_name, file in files.items():
        name = full_name.removeprefix(root)
        if full_name.startswith(root) and name.startswith(PARTS) and not name.endswith(COUNTERS):
            for variant, usual in NAME_VARIANTS.items():
                name = name.replace(variant, usual)
            found[name] = file, full_name
    return found


def _match_shape(values, name, weight):
    """Return a tensor in the shape of a weight; transpose kernels, which torch stores as (outputs, inputs)."""
    is_kernel = name.endswith(".weight") and values.ndim == 2 and "_embeddings" not in name
    values = values.T if is_kernel else values
    if values.size != math.prod(weight.shape):
        raise ValueError(
            f"`folder` must have tensors that fit its config.json: {name} with {math.prod(weight.shape)} values. "
            f"Received: shape {values.shape}."
        )
    return values.reshape(weight.shape)
