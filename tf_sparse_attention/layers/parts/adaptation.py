"""Low-rank adaptation and quantization of the dense layers inside of a layer, and how its config tells of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.types import Config

LORA_TARGETS = ("query", "value")
QUANTIZATION_MODES = ("int8", "int4", "float8")  # those that need no calibration with data


class LowRankMixin:
    """`enable_lora` for a layer or model with dense layers inside."""

    name: str
    trainable_variables: list[keras.Variable]
    _flatten_layers: Callable[..., list[keras.layers.Layer]]

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None, target_layer_names: Sequence[str] = LORA_TARGETS
    ) -> None:
        """Freeze the weights and adds trainable low-rank kernels to some of the dense layers inside (Hu et al. 2021).

        A kernel W becomes W + (lora_alpha / rank) A B, at first W itself. State that is not trained by gradients, as
        centroids, still moves in training. Keras saves the sum as one kernel, rounded anew if it is quantized: a model
        that is loaded computes the same, has no low-rank kernels, and its optimizer begins anew.

        Args:
            rank: columns of A, at least 1.
            lora_alpha: factor. None: `rank`.
            target_layer_names: names of the layers inside that get them. Default: those of queries and values.

        Raises:
            ValueError: if there are none of these names, or they have low-rank kernels already.

        Example:
            >>> layer = tsa.layers.LocalAttention(2, 8, window=16)
            >>> layer.build((None, None, 16))
            >>> layer.enable_lora(4)
            >>> len(layer.trainable_weights)
            4
        """
        checks.check_count("rank", rank)
        inside = self._flatten_layers(include_self=False)
        targets = [layer for layer in inside if layer.name in target_layer_names and hasattr(layer, "enable_lora")]
        if not targets or any(layer.lora_enabled for layer in targets):
            names = [layer.name for layer in targets]
            raise ValueError(
                "`target_layer_names` must name dense layers inside of a layer that is built, none with low-rank "
                f"kernels. Received: target_layer_names={tuple(target_layer_names)}, of which {self.name} has {names}."
            )
        for weight in self.trainable_variables:
            weight.trainable = False
        for layer in targets:
            layer.enable_lora(rank, lora_alpha)


def copy_low_rank(source: Mapping[str, keras.layers.Layer], target: Mapping[str, keras.layers.Layer]) -> None:
    """Give each dense layer of `target` low-rank kernels, if that of `source` by the same key has some."""
    for key in source.keys() & target.keys():
        old, new = source[key], target[key]
        if getattr(old, "lora_enabled", False) and not new.lora_enabled:
            new.enable_lora(old.lora_rank, old.lora_alpha)


class AdaptableMixin(LowRankMixin):
    """`enable_lora` and `quantize` for a layer with dense layers inside, and a config that says which are quantized."""

    def quantize(
        self, mode: str, type_check: bool = True, config: keras.quantizers.QuantizationConfig | None = None
    ) -> None:
        """Quantize the kernels of the dense layers inside, as `keras.Model.quantize` does for those of a model.

        Args:
            mode: "int8", "int4" or "float8".
            type_check: as Keras has it: subclasses of the dense layers are refused. Default: True.
            config: a `keras.quantizers.QuantizationConfig`. Default: that of the mode.

        Raises:
            ValueError: for another mode, and from Keras if the layer is not built.
        """
        checks.check_choice("mode", mode, QUANTIZATION_MODES)
        for layer in self._flatten_layers(include_self=False):
            if type(layer).quantize is not keras.layers.Layer.quantize and _is_leaf(layer):
                layer.quantize(mode, type_check=type_check, config=config)

    def get_config(self) -> Config:
        config = super().get_config()  # type: ignore[misc]  # of the Keras layer that it is mixed into
        return {**config, "dtype": keras.dtype_policies.serialize(policy_of(self))}


def policy_of(layer: keras.layers.Layer) -> keras.DTypePolicy | keras.dtype_policies.DTypePolicyMap:
    """Return the dtype policy of a layer, together with those of the quantized layers inside by their paths.

    Layers inside are made with it, dense ones with `policy_inside`, so that those that were quantized have kernels of
    few bits again to load. The paths are patterns: the layer may stand in another model then.
    """
    quantized = {
        _pattern(layer, inner): _policy(inner, inner.path)
        for inner in layer._flatten_layers(include_self=False)
        if inner.quantization_mode is not None and _is_leaf(inner)
    }
    if not quantized:
        return layer.dtype_policy
    return keras.dtype_policies.DTypePolicyMap(_policy(layer, "").name, quantized)


def policy_inside(layer: keras.layers.Layer, name: str) -> keras.DTypePolicy:
    """Return the dtype policy for a dense layer of that name that a layer makes of its own."""
    # Models build what is inside in their constructors, some of it under their name and some of it not.
    found = [_policy(layer, path) for path in (f"{layer.path or layer.name}/{name}", name)]
    return next((policy for policy in found if policy.quantization_mode is not None), found[0])


def _policy(layer, path):
    """Return the dtype policy of a layer at a path, "" for that of what is not quantized."""
    policy = layer.dtype_policy
    return policy[path] if isinstance(policy, keras.dtype_policies.DTypePolicyMap) else policy


def _pattern(layer, inner):
    """Return a regular expression of the path of a layer inside of another, wherever that one stands."""
    path = inner.path
    if layer.path and path.startswith(f"{layer.path}/"):
        path = layer.name + path.removeprefix(layer.path)
    return f"(?:.*/)?{re.escape(path)}"


def _is_leaf(layer: Any) -> bool:
    return len(layer._flatten_layers()) == 1
