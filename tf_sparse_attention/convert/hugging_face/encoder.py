"""Longformer and BigBird checkpoints in the layout of Hugging Face: config.json and safetensors."""

import json
import math
import pathlib

from tf_sparse_attention.convert.hugging_face.names import NAMES, name_in_encoder, root_of
from tf_sparse_attention.convert.weights import zeros_at_first
from tf_sparse_attention.models import Encoder

ACTIVATIONS = {
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
NEEDED = ("vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act")
NEEDED += ("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob")
NEEDED += ("attention_probs_dropout_prob",)
NEEDED_BY = {"longformer": ("attention_window", "pad_token_id"), "big_bird": ("block_size", "num_random_blocks")}


def from_hugging_face(folder, num_global=64, dtype=None):
    """Returns a Longformer or BigBird encoder with the weights of a checkpoint.

    Hidden states and pooled output are those of `LongformerModel` and `BigBirdModel` outside training, where a BigBird
    counts its first block once more for each random block and draws none, and attends densely to texts of at most
    (5 + 2 random blocks) blocks. The same holds here in training. At padding a Longformer has other states than the
    published model only where no token is global. Heads of tasks are left out.

    Args:
        folder: path of a local folder, as `huggingface_hub.snapshot_download` makes one, with config.json and
            model.safetensors, or its shards with model.safetensors.index.json.
        num_global: global tokens of a text that a Longformer keeps places for; if more are marked, the rest are not
            global, and states differ from the published ones. Default 64.
        dtype: policy of the model. None: that of Keras.

    Returns:
        An `Encoder`. What `transformers` calls input_ids, attention_mask and token_type_ids are its "token_ids",
        "padding_mask" and "token_type_ids"; a Longformer takes "global_mask" too.

    Raises:
        ValueError: for another kind of model, settings that have no counterpart here, and names that are missing or
            unknown.
        ImportError: if `safetensors` is not installed.

    Example:
        encoder = tsa.convert.from_hugging_face(snapshot_download("allenai/longformer-base-4096"))
        states = encoder({"token_ids": ids, "padding_mask": mask, "global_mask": marks})["sequence_output"]
    """
    folder = pathlib.Path(folder)
    config = _read_json(folder / "config.json")
    arguments = encoder_arguments(config, num_global)
    sources = _without_root(_files_of_tensors(folder))
    with zeros_at_first():
        encoder = Encoder(**arguments, use_pooler="pooler.weight" in sources, dtype=dtype)
    wanted = {source_name(weight.path): weight for weight in encoder.weights}
    _check_names(set(wanted), set(sources))
    for name, weight in wanted.items():
        file, full_name = sources[name]
        weight.assign(_arranged(file.get_tensor(full_name), name, weight))
    return encoder


def encoder_arguments(config, num_global):
    """Returns the arguments of `Encoder` for a config.json of Hugging Face, a dictionary."""
    if not isinstance(config, dict):
        raise ValueError(f"config.json must hold one JSON object. Received: a {type(config).__name__}.")
    kind = config.get("model_type")
    if kind not in NEEDED_BY:
        raise ValueError(f"`model_type` of config.json must be 'longformer' or 'big_bird'. Received: {kind!r}.")
    if config.get("hidden_act") not in ACTIVATIONS:
        raise ValueError(
            f"`hidden_act` of config.json must be one of {sorted(ACTIVATIONS)}. Received: {config.get('hidden_act')!r}."
        )
    needed = [*NEEDED, *NEEDED_BY[kind]]
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"config.json of a {kind} must have {needed}. Received: none of {missing}.")
    if config.get("is_decoder"):
        raise ValueError("`is_decoder` of config.json must be false: this is an encoder. Received: true.")
    own = _longformer(config, num_global) if kind == "longformer" else _big_bird(config)
    return {
        "vocabulary_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "hidden_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "max_length": config["max_position_embeddings"],
        "num_token_types": config["type_vocab_size"],
        "activation": ACTIVATIONS[config["hidden_act"]],
        "epsilon": config["layer_norm_eps"],
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
    windows = [windows] * config["num_hidden_layers"] if isinstance(windows, int) else windows
    if len(windows) != config["num_hidden_layers"]:
        raise ValueError(
            f"`attention_window` of config.json must have a number for each of {config['num_hidden_layers']} layers. "
            f"Received: {windows}."
        )
    common = {**_heads(config), "num_global": num_global, "own_projections": True}
    # Half the window to a side, and the token itself.
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


def source_name(path):
    """Returns the name in a checkpoint of the weight of an `Encoder` at a path."""
    *place, layer, kind = path.split("/")
    index = next((part.removeprefix("block_") for part in path.split("/") if part.startswith("block_")), None)
    inner = "/".join([*(part for part in place if not part.startswith(("block_", "encoder"))), layer])
    return NAMES[f"{inner}/{kind}"].format(index=index)


def _read_json(path):
    if not path.is_file():
        raise ValueError(
            f"`folder` must be a local folder with a {path.name}, as huggingface_hub.snapshot_download makes one. "
            f"Received: {path.parent}."
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"`folder` must have a {path.name} of JSON. Received: {path}, where {error}.") from error


def _files_of_tensors(folder):
    """Returns the open safetensors file that holds each tensor, by name."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "`from_hugging_face` needs safetensors: pip install 'tf_sparse_attention[safetensors]'"
        ) from error
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        names = sorted(set(_read_json(index)["weight_map"].values()))
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
            raise ValueError(f"`folder` must have whole safetensors files. Received: {name}: {error}.") from error
        found.update(dict.fromkeys(file.keys(), file))
    return found


def _without_root(files):
    """Returns pairs of file and full name by the name in the encoder; heads of tasks are left out."""
    root = root_of(files)
    named = {name_in_encoder(name, root): (file, name) for name, file in files.items()}
    return {name: source for name, source in named.items() if name is not None}


def _check_names(wanted, given):
    if wanted != given:
        raise ValueError(
            "`folder` must have the weights of its config.json and no others. "
            f"Received: missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}."
        )


def _arranged(values, name, weight):
    """Returns a tensor in the shape of a weight: kernels of torch have their outputs first."""
    is_kernel = name.endswith(".weight") and values.ndim == 2 and "_embeddings" not in name
    values = values.T if is_kernel else values
    if values.size != math.prod(weight.shape):
        raise ValueError(
            f"`folder` must have tensors of the sizes in its config.json: {name} of {math.prod(weight.shape)} numbers. "
            f"Received: shape {values.shape}."
        )
    return values.reshape(weight.shape)
