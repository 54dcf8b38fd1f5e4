"""Low-rank adaptation (LoRA) and quantization of the dense sublayers of a layer."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.types import Config

LORA_TARGETS = ("query", "value")
QUANTIZATION_MODES = ("int8", "int4", "float8")  # modes without calibration data


class LowRankMixin:
    """`enable_lora` for a layer or model with dense layers inside."""

    name: str
    trainable_variables: list[keras.Variable]
    _flatten_layers: Callable[..., list[keras.layers.Layer]]

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None, target_layer_names: Sequence[str] = LORA_TARGETS
    ) -> None:
        """Freeze the weights and add trainable low-rank kernels to dense sublayers (Hu et al. 2021).

        A kernel W becomes W + (lora_alpha / rank) A B, initially W itself. State without gradients, such as centroids,
        is still updated in training. Keras saves the sum as one kernel, rounded if it is quantized: a loaded model
        computes the same, has no low-rank kernels, and needs a new optimizer.

        Args:
            rank: number of columns of A, at least 1.
            lora_alpha: factor. None: `rank`.
            target_layer_names: names of the sublayers to adapt. Default: the projections of queries and values.

        Raises:
            ValueError: if no sublayer has one of the names, or one already has low-rank kernels.

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
                "`target_layer_names` must name dense sublayers of a built layer, none with low-rank kernels. "
                f"Received: target_layer_names={tuple(target_layer_names)}, of which {self.name} has {names}."
            )
        for weight in self.trainable_variables:
            weight.trainable = False
        for layer in targets:
            layer.enable_lora(rank, lora_alpha)


def copy_low_rank(source: Mapping[str, keras.layers.Layer], target: Mapping[str, keras.layers.Layer]) -> None:
    """Add low-rank kernels to the dense layers of `target` whose counterpart in `source`, by key, has them."""
    for key in source.keys() & target.keys():
        old, new = source[key], target[key]
        if getattr(old, "lora_enabled", False) and not new.lora_enabled:
            new.enable_lora(old.lora_rank, old.lora_alpha)


class AdaptableMixin(LowRankMixin):
    """`enable_lora` and `quantize` for a layer with dense sublayers, and a config with their dtype policies."""

    def quantize(
        self, mode: str, type_check: bool = True, config: keras.quantizers.QuantizationConfig | None = None
    ) -> None:
        """Quantize the kernels of dense sublayers, as `keras.Model.quantize` does for a model.

        Args:
            mode: "int8", "int4" or "float8".
            type_check: as in Keras: subclasses of the dense layers raise an error. Default: True.
            config: a `keras.quantizers.QuantizationConfig`. Default: the config of the mode.

        Raises:
            ValueError: if the mode is invalid, and from Keras if the layer is not built.
        """
        checks.check_choice("mode", mode, QUANTIZATION_MODES)
        for layer in self._flatten_layers(include_self=False):
            if type(layer).quantize is not keras.layers.Layer.quantize and _is_leaf(layer):
                layer.quantize(mode, type_check=type_check, config=config)

    def get_config(self) -> Config:
        config = super().get_config()  # type: ignore[misc]  # of the Keras layer
        return {**config, "dtype": keras.dtype_policies.serialize(policy_of(self))}


def policy_of(layer: keras.layers.Layer) -> keras.DTypePolicy | keras.dtype_policies.DTypePolicyMap:
    """Return the dtype policy of a layer, including the policies of quantized sublayers by path.

    With it, a loaded layer creates quantized kernels. The paths are regular expressions, because the layer may be
    loaded into another model.
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
    """Return the dtype policy for a dense sublayer with a name."""
    # Models build sublayers in their constructors, with and without their own name in the path.
    found = [_policy(layer, path) for path in (f"{layer.path or layer.name}/{name}", name)]
    return next((policy for policy in found if policy.quantization_mode is not None), found[0])


def _policy(layer, path):
    """Return the dtype policy of a layer at a path; at "", the policy of what is not quantized."""
    policy = layer.dtype_policy
    return policy[path] if isinstance(policy, keras.dtype_policies.DTypePolicyMap) else policy


def _pattern(layer, inner):
    """Return a regular expression for the path of a sublayer, independent of the model around the layer."""
    path = inner.path
    if layer.path and path.startswith(f"{layer.path}/"):
        path = layer.name + path.removeprefix(layer.path)
    return f"(?:.*/)?{re.escape(path)}"


def _is_leaf(layer: Any) -> bool:
    return len(layer._flatten_layers()) == 1
