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
    """Mixin that adds `enable_lora` to a layer or model with dense sublayers."""

    name: str
    trainable_variables: list[keras.Variable]
    _flatten_layers: Callable[..., list[keras.layers.Layer]]

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None, target_layer_names: Sequence[str] = LORA_TARGETS
    ) -> None:
        """Freeze the weights and add trainable low-rank kernels to dense sublayers (LoRA, Hu et al. 2021).

        A kernel W becomes W + (lora_alpha / rank) A B, which initially equals W. State without gradients, such as
        centroids, is still updated in training. Saving merges the low-rank kernels into W. If W is quantized, the sum
        is rounded. A loaded model computes the same results, but it has no low-rank kernels and needs a new optimizer.

        Args:
            rank: number of columns of A, at least 1.
            lora_alpha: scale numerator of the low-rank update. None: `rank`.
            target_layer_names: names of the sublayers to adapt. Default: the projections of queries and values.

        Raises:
            ValueError: if no sublayer has one of the names, or if a sublayer already has low-rank kernels.

        Example:
            >>> layer = tsa.layers.LocalAttention(2, 8, window=16)
            >>> layer.build((None, None, 16))
            >>> layer.enable_lora(4)
            >>> len(layer.trainable_weights)
            4
        """
        checks.check_count("rank", rank)
        sublayers = self._flatten_layers(include_self=False)
        targets = [layer for layer in sublayers if layer.name in target_layer_names and hasattr(layer, "enable_lora")]
        if not targets or any(layer.lora_enabled for layer in targets):
            names = [layer.name for layer in targets]
            raise ValueError(
                "`target_layer_names` must be names of dense sublayers of a built layer without low-rank kernels. "
                f"Received: target_layer_names={tuple(target_layer_names)}, of which {self.name} has {names}."
            )
        for weight in self.trainable_variables:
            weight.trainable = False
        for layer in targets:
            layer.enable_lora(rank, lora_alpha)


def copy_low_rank(source: Mapping[str, keras.layers.Layer], target: Mapping[str, keras.layers.Layer]) -> None:
    """Add low-rank kernels to the dense layers of `target` whose counterparts in `source` have them, by key."""
    for key in source.keys() & target.keys():
        old, new = source[key], target[key]
        if getattr(old, "lora_enabled", False) and not new.lora_enabled:
            new.enable_lora(old.lora_rank, old.lora_alpha)


class AdaptableMixin(LowRankMixin):
    """Mixin that adds `enable_lora` and `quantize` to a layer with dense sublayers.

    The layer's config stores the dtype policies of the sublayers.
    """

    def quantize(
        self, mode: str, type_check: bool = True, config: keras.quantizers.QuantizationConfig | None = None
    ) -> None:
        """Quantize the kernels of dense sublayers, as `keras.Model.quantize` does for a model.

        Args:
            mode: "int8", "int4" or "float8".
            type_check: whether subclasses of the dense layers of Keras raise an error, as in Keras. Default True.
            config: a `keras.quantizers.QuantizationConfig`. None: the default config of the mode.

        Raises:
            ValueError: if the mode is invalid, or if the layer is not built.
        """
        checks.check_choice("mode", mode, QUANTIZATION_MODES)
        for layer in self._flatten_layers(include_self=False):
            if type(layer).quantize is not keras.layers.Layer.quantize and _has_no_sublayers(layer):
                layer.quantize(mode, type_check=type_check, config=config)

    def get_config(self) -> Config:
        config = super().get_config()  # type: ignore[misc]  # defined by the Keras layer
        return {**config, "dtype": keras.dtype_policies.serialize(layer_dtype_policy(self))}


def layer_dtype_policy(layer: keras.layers.Layer) -> keras.DTypePolicy | keras.dtype_policies.DTypePolicyMap:
    """Return the dtype policy of a layer, including the policies of quantized sublayers by path.

    A layer that is created with this policy has quantized kernels. The paths are regular expressions, because the layer
    may become part of another model.
    """
    quantized = {
        _path_pattern(layer, inner): _policy_at(inner, inner.path)
        for inner in layer._flatten_layers(include_self=False)
        if inner.quantization_mode is not None and _has_no_sublayers(inner)
    }
    if not quantized:
        return layer.dtype_policy
    return keras.dtype_policies.DTypePolicyMap(_policy_at(layer, "").name, quantized)


def sublayer_policy(layer: keras.layers.Layer, name: str) -> keras.DTypePolicy:
    """Return the dtype policy for a dense sublayer with this name."""
    # The path of a sublayer that a model builds in its constructor may lack the name of the model.
    found = [_policy_at(layer, path) for path in (f"{layer.path or layer.name}/{name}", name)]
    return next((policy for policy in found if policy.quantization_mode is not None), found[0])


def _policy_at(layer, path):
    """Return the dtype policy of a layer for a path. The path "" gives the policy without quantization."""
    policy = layer.dtype_policy
    return policy[path] if isinstance(policy, keras.dtype_policies.DTypePolicyMap) else policy


def _path_pattern(layer, inner):
    """Return a regular expression for the path of a sublayer, independent of the model that contains the layer."""
    path = inner.path
    if layer.path and path.startswith(f"{layer.path}/"):
        path = layer.name + path.removeprefix(layer.path)
    return f"(?:.*/)?{re.escape(path)}"


def _has_no_sublayers(layer: Any) -> bool:
    return len(layer._flatten_layers()) == 1
