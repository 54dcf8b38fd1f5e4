"""tensor2tensor hparams that variable names and shapes do not determine, from a file or a preset."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tf_sparse_attention.convert.t2t.layout import Layout
from tf_sparse_attention.models import PRESETS, TRANSLATION_PRESETS

FILE = "hparams.json"
# Settings that every conversion requires, and settings required only with routed heads or an encoder.
REQUIRED = ("query_shape", "memory_flange")
REQUIRED_FOR_ROUTING = ("sparsity_cluster_attention_window", "share_qk")
REQUIRED_FOR_ENCODER = ("memory_query_shape",)
# Defaults for missing settings: the values of nearly all published models.
DEFAULTS = {
    "norm_epsilon": 1e-6,
    "beta": 1e-4,
    "decay": 0.999,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
    "layer_prepostprocess_dropout": 0.0,
    "dropout": 0.0,
    "target_dropout": 0.0,
    "add_timing_signal": False,
}
# The only supported value, and the default, by setting.
SUPPORTED = {
    "hash_items": False,
    "sparsity_strided_num_heads": 0,
    "sparsity_cluster_strided_num_heads": 0,
    "norm_type": "layer",
}
# The same for settings that matter only with an encoder: one padding mask for all rows, and dropout of inputs.
SUPPORTED_WITH_ENCODER = {"cache_padding_bias": False, "input_dropout": 0.0}


def read_settings(hparams: str | os.PathLike | dict[str, Any] | None, folder: pathlib.Path | None) -> dict[str, Any]:
    """Return tensor2tensor hparams as a dictionary.

    Args:
        hparams: path of a JSON file, name of a preset of the Routing Transformer, or dictionary that overrides the
            `hparams.json` in `folder`, if present. None: only this `hparams.json`.
        folder: folder of the checkpoint, or None.

    Raises:
        ValueError: If the file or preset does not exist, or the file is not a JSON object.
    """
    if hparams is None or isinstance(hparams, dict):
        path = None if folder is None else folder / FILE
        found = _read(path) if path is not None and path.is_file() else {}
        return {**found, **(hparams or {})}
    names = [name for name in sorted(PRESETS | TRANSLATION_PRESETS) if _is_published(name)]
    if str(hparams) in names:
        return _preset_settings(str(hparams))
    if not pathlib.Path(hparams).is_file():
        raise ValueError(
            f"`hparams` must be a file, a dictionary or one of the presets {names}. Received: hparams={str(hparams)!r}."
        )
    return _read(pathlib.Path(hparams))


def _read(path):
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`hparams` must be a JSON file in UTF-8. Received: {path.name}: {error}.") from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"`hparams` must be a file with one JSON object. Received: {path.name} with a {type(settings).__name__}."
        )
    return settings


def _arguments_of(name):
    """Return the `Backbone` arguments of a preset; for an encoder-decoder, of its decoder."""
    return TRANSLATION_PRESETS[name]["decoder"] if name in TRANSLATION_PRESETS else PRESETS[name]["arguments"]


def _is_published(name):
    """Return whether a preset is a Routing Transformer for text: local blocks and routed heads only."""
    attention = _arguments_of(name)["attention"]
    if not isinstance(attention, dict):
        return False
    parts = {part["layer"]: part for part in attention["parts"]}
    return "block_size" in parts.pop("LocalAttention", {}) and not set(parts) - {"RoutingAttention"}


def _preset_settings(name: str) -> dict[str, Any]:
    """Return the tensor2tensor hparams of a preset of the Routing Transformer."""
    arguments = _arguments_of(name)
    parts = {part["layer"]: part for part in arguments["attention"]["parts"]}
    local = parts.pop("LocalAttention")
    settings = {
        "query_shape": [local["block_size"]],
        "memory_flange": [local["block_size"]],
        "share_qk": True,
        "max_relative_position": local["max_distance"],
        "attention_dropout": local["dropout"],
        "relu_dropout": arguments["dropout"]["activation"],
        "dropout": arguments["dropout"]["embedding"],
        "target_dropout": arguments["dropout"]["tokens"],
        "hidden_size": arguments["hidden_dim"],
        "embedding_dims": arguments["embedding"]["dim"],
        "filter_size": arguments["intermediate_dim"],
        "num_decoder_layers": arguments["num_layers"],
        "ffn_layer": "geglu" if arguments["activation"] == "geglu" else "conv_hidden_relu",
        "local_num_heads": local["num_heads"],
        **(_encoder_settings(name) if name in TRANSLATION_PRESETS else {}),
    }
    routing = parts.get("RoutingAttention")
    if routing is None:
        return {**settings, "sparsity_cluster_num_heads": 0}
    return {
        **settings,
        "sparsity_cluster_num_heads": routing["num_heads"],
        "sparsity_cluster_size": routing["num_clusters"],
        "sparsity_cluster_attention_window": routing["cluster_size"],
        "sparsity_skip_first": arguments["attention"]["num_local_layers"],
    }


def _encoder_settings(name):
    """Return the additional hparams of a preset with an encoder."""
    encoder, decoder = (TRANSLATION_PRESETS[name][side] for side in ("encoder", "decoder"))
    (key_block,) = {part["key_block_size"] for part in decoder["cross_attention"] if "key_block_size" in part}
    return {
        "num_encoder_layers": encoder["num_layers"],
        "memory_query_shape": [key_block],
        "layer_prepostprocess_dropout": decoder["dropout"]["residual"],
        "optimizer": "adam",
    }


def check_settings(settings: Mapping[str, Any], layout: Layout) -> None:
    """Raise a `ValueError` if settings are missing, not supported, or contradict the variables.

    Args:
        settings: result of `read_settings`.
        layout: result of `read_layout`.
    """
    required = REQUIRED + (REQUIRED_FOR_ROUTING if layout.has_routing else ())
    required += REQUIRED_FOR_ENCODER if layout.encoder_layers else ()
    missing = [name for name in required if settings.get(name) is None]
    if missing:
        raise ValueError(
            f"`hparams` must have {', '.join(required)}, which the variables of a checkpoint do not determine. Pass "
            f"the file {FILE}, a dictionary, or the name of a preset. Missing: {', '.join(missing)}."
        )
    supported = SUPPORTED | (SUPPORTED_WITH_ENCODER if layout.encoder_layers else {})
    unsupported = {name: settings[name] for name, value in supported.items() if settings.get(name, value) != value}
    if unsupported:
        expected = {name: supported[name] for name in unsupported}
        raise ValueError(f"`hparams` must have {expected}; other values are not supported. Received: {unsupported}.")
    _check_blocks(settings, layout)
    wrong = {
        name: (settings[name], found)
        for name, found in _settings_from_layout(layout, settings).items()
        if settings.get(name) is not None and settings[name] != found and not _means_default(name, settings[name])
    }
    if wrong:
        listed = "; ".join(
            f"{name}={value!r}, but the variables imply {found!r}" for name, (value, found) in wrong.items()
        )
        raise ValueError(f"`hparams` must agree with the names and shapes of the checkpoint. Received: {listed}.")


def _check_blocks(settings, layout):
    for name in ("query_shape", "memory_query_shape") if layout.encoder_layers else ("query_shape",):
        block, flange = settings[name], settings["memory_flange"]
        if not (_is_size(block) and _is_size(flange) and block[0] > 0 and flange[0] % block[0] == 0):
            raise ValueError(
                f"`hparams` must have a {name} with one axis, and a memory_flange that is a multiple of it. "
                f"Received: {name}={block!r}, memory_flange={flange!r}."
            )


def _is_size(value):
    return isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], int)


def _means_default(name, value):
    return name in ("num_decoder_layers", "num_encoder_layers") and value == 0  # 0: another setting is used


def _settings_from_layout(layout, settings):
    """Return the settings that the variables determine."""
    found = {
        "hidden_size": layout.hidden_dim,
        "embedding_dims": layout.embedding_dim,
        "num_decoder_layers": layout.num_layers,
        "num_encoder_layers": layout.encoder_layers,
        "ema": layout.has_averages if layout.has_routing else settings.get("ema"),
        "layer_preprocess_sequence": "none" if layout.norm == "post" else "n",
        "layer_postprocess_sequence": "dan" if layout.norm == "post" else "da",
    }
    kind = settings.get("ffn_layer")
    found["ffn_layer"] = {"geglu": "geglu", None: "none"}.get(layout.activation, kind)
    if layout.activation == "relu" and kind in ("geglu", "none"):
        found["ffn_layer"] = "conv_hidden_relu"
    if layout.activation is not None:
        found["filter_size"] = layout.intermediate_dim
    distances = {layout.local_distance, layout.routing_distance} - {None}
    if len(distances) == 1:
        (found["max_relative_position"],) = distances
    found["local_relative"] = layout.local_distance is not None
    if layout.has_routing:
        return {
            **found,
            "local_num_heads": layout.num_local,
            "sparsity_cluster_num_heads": layout.num_routing,
            "sparsity_cluster_relative": layout.routing_distance is not None,
            "sparsity_cluster_size": layout.num_clusters,
            "sparsity_skip_first": layout.num_skipped,
        }
    skips_all = (settings.get("sparsity_skip_first") or 0) >= layout.num_skipped
    routing = (settings.get("sparsity_cluster_num_heads") or 0) if skips_all else 0
    return {**found, "local_num_heads": layout.num_heads - routing, "sparsity_cluster_num_heads": routing}
