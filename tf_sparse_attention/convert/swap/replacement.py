"""Replacement of the attention layers of one model, with a report."""

from collections.abc import Callable
from typing import TypeAlias

import keras

from tf_sparse_attention.convert.swap.dense_attention import (
    is_dense_attention,
    is_keras_attention,
    is_sparse,
    limit_window,
    looks_like_attention,
    sliding_window_of,
    unsupported_reason,
)
from tf_sparse_attention.convert.swap.families import (
    block_reason,
    copy_head_parts,
    family_of,
    keras_form,
    model_reasons,
    note_rotary_positions,
)
from tf_sparse_attention.convert.swap.model_copy import copy_layer, copy_state, is_plain_graph, rebuild_model
from tf_sparse_attention.layers.attention.attention_checks import can_be_causal
from tf_sparse_attention.layers.attention.swapped_attention import SwappedAttention
from tf_sparse_attention.layers.parts.projections import copy_trainable, input_sizes
from tf_sparse_attention.models.rebuilding import initialize_with_zeros
from tf_sparse_attention.models.swapped_model import LayerSite, find_layer_sites, scope_around, swap, wrap_for_saving

CROSS_ATTENTION = "it attends to another sequence"
DECLINED = "make_layer returned None"
# By `id` of a dense layer: its replacement and its report entry, or None and () if it is kept.
Swapped: TypeAlias = dict[int, tuple[SwappedAttention | None, tuple[str, ...]]]


class Replacement:
    """One replacement of dense attention by sparse layers.

    Args:
        make_layer: function of a dense attention layer that returns a new layer, or None to keep the dense layer.
        causal: whether every new layer is called with `use_causal_mask`.
        keep_windows: whether the window of a dense attention limits the window of the new layer.

    Attributes:
        replaced: by path, the class names of the dense and the new layer, followed by remarks, as text.
        skipped: by path, the class name and the reason.
    """

    def __init__(
        self,
        make_layer: Callable[[keras.layers.Layer], keras.layers.Layer | None],
        causal: bool,
        keep_windows: bool = True,
    ) -> None:
        self.make_layer = make_layer
        self.causal = causal
        self.keep_windows = keep_windows
        self.replaced: dict[str, tuple[str, ...]] = {}
        self.skipped: dict[str, tuple[str, str]] = {}
        self.new_layers: dict[int, keras.layers.Layer] = {}  # results of `make_layer`, by `id`

    def report(self) -> str:
        """Return one line per attention, as text."""
        lines = []
        for path, (old, new, *remarks) in self.replaced.items():
            lines.append("; ".join([f"replaced  {path}: {old} by {new}", *remarks]))
        lines += [f"skipped   {path}: {old}, {reason}" for path, (old, reason) in self.skipped.items()]
        return "\n".join(lines or ["no attention found"])

    def note_skipped(self, path: str, layer: keras.layers.Layer, reason: str) -> None:
        """Record the reason why an attention layer is not replaced."""
        self.skipped[path] = type(layer).__name__, reason

    def copy_model(self, model: keras.layers.Layer, path: str = "") -> keras.layers.Layer:
        """Return a copy of a model; attention nodes of a plain graph are replaced."""
        if not is_plain_graph(model):
            return rebuild_model(model)
        return _GraphCopy(self, model, path).make()

    def make_sparse_layer(
        self, path: str, dense: keras.layers.Layer, block: keras.layers.Layer | None = None
    ) -> keras.layers.Layer | None:
        """Return and record a new layer with the weights of a dense layer; None if the dense layer is kept.

        Args:
            path: path of the dense layer in the model.
            dense: the dense layer.
            block: the layer that contains it, or None for a node of a graph.
        """
        reason = unsupported_reason(dense)
        layer = None if reason else self.make_layer(dense)
        if layer is None:
            self.note_skipped(path, dense, reason or DECLINED)
            return None
        if id(layer) in self.new_layers:
            raise ValueError(
                f"`make_layer` must return a new layer each time. Received: {layer.name} again, for {path}."
            )
        self.new_layers[id(layer)] = layer
        if not is_sparse(layer):
            raise ValueError(
                f"`make_layer` must return an attention layer of this library or None. Received: {layer!r} for {path}."
            )
        family = family_of(dense)
        causal = self.causal or (family is not None and family.causal(dense, block))
        if causal and not can_be_causal(layer):
            raise ValueError(_not_causal(path, layer))
        remarks: list[str] = []
        window = sliding_window_of(dense, block) if self.keep_windows else None
        if window is not None:
            layer, remarks = limit_window(layer, window)
            backend = keras.backend.backend()
            if family is not None and family.window_backend not in (None, backend):
                remarks.append(f"KerasHub ignores this window on {backend}, so the dense model's results differ")
        form = keras_form(dense)
        try:
            with scope_around(dense):
                layer.copy_projections(form)
        except ValueError as error:
            raise ValueError(
                f"`make_layer` must return a layer that fits {path}: pass it `arguments_of(attention)`, "
                f"and `share_qk=False` if the layer has this argument. {error}"
            ) from error
        if family is not None:
            remarks += copy_head_parts(dense, layer)
        is_causal = layer.pattern is None or layer.pattern.causal_selection
        if causal and not is_causal:
            remarks.append("its selection is not causal, so it decodes without its own cache")
        layer.trainable = dense.trainable
        copy_trainable(form, layer)
        self.replaced[path] = type(dense).__name__, type(layer).__name__, *remarks
        return layer

    def replace_sublayers(self, model: keras.layers.Layer, crossings: dict[str, bool]) -> keras.layers.Layer:
        """Replace dense attention inside other layers, in place; return the model itself.

        Args:
            model: the result of `copy_model`.
            crossings: see `SymbolicCalls`.
        """
        known = {**self.replaced, **self.skipped}
        note_rotary_positions(model)
        sites = find_layer_sites(model)
        reasons = model_reasons(model)
        by_dense: Swapped = {}
        for site in sites:
            if site.path in known or not is_dense_attention(site.layer):
                continue
            if site.attribute is None:
                self.note_skipped(site.path, site.layer, f"it is a node of a {type(site.parent).__name__}")
            elif reason := reasons.get(id(site.layer)) or _site_reason(site, crossings):
                self.note_skipped(site.path, site.layer, reason)
            else:
                self._replace_at(site, by_dense)
        self._note_other_attention(sites)
        return wrap_for_saving(model) if by_dense else model

    def _replace_at(self, site: LayerSite, by_dense: Swapped) -> None:
        """Replace the dense layer at one site; a shared dense layer gets the same replacement at all sites."""
        dense = site.layer
        if id(dense) not in by_dense:
            layer, family = self.make_sparse_layer(site.path, dense, site.parent), family_of(dense)
            swapped = layer and SwappedAttention(
                layer,
                self.causal,
                "keras" if family is None else family.call_style,
                name=dense.name,
                dtype=dense.dtype_policy,
                trainable=dense.trainable,
            )
            by_dense[id(dense)] = swapped, self.replaced.get(site.path, ())
        swapped, summary = by_dense[id(dense)]
        if swapped is not None:
            swap(site, swapped)
            self.replaced[site.path] = summary

    def _note_other_attention(self, sites):
        """Record attention layers that cannot be replaced and contain no attention that is already recorded."""
        known = [*self.replaced, *self.skipped]
        for site in sites:
            inside = any(path.startswith(f"{site.path}.") for path in known)
            if looks_like_attention(site.layer) and site.path not in known and not inside:
                reason = unsupported_reason(site.layer)
                self.note_skipped(site.path, site.layer, reason)  # type: ignore[arg-type]  # replaceable layers are recorded
                known.append(site.path)


class _GraphCopy:
    """A copy of a functional or Sequential model whose attention nodes are replaced."""

    def __init__(self, replacement: Replacement, model: keras.Model, path: str) -> None:
        self.replacement = replacement
        self.model = model
        self.path = path
        self.pairs: list[tuple[keras.layers.Layer, keras.layers.Layer]] = []  # each layer with its copy
        # By `id` of the copy: the dense layer, and its copy or, once created, its replacement.
        self.dense: dict[int, list[keras.layers.Layer]] = {}

    def make(self) -> keras.Model:
        sequential = isinstance(self.model, keras.Sequential)
        call = {} if sequential else {"call_function": self._call}
        copy = keras.models.clone_model(self.model, clone_function=self._copy_layer, **call)
        for old, new in self.pairs:
            if new.built:  # copies of replaced attention are not built
                copy_state(old, new)
        return copy

    def _copy_layer(self, layer):
        if is_plain_graph(layer):
            return self.replacement.copy_model(layer, f"{self.path}{layer.name}.")
        copy = copy_layer(layer)
        if is_keras_attention(layer):
            self.dense[id(copy)] = [layer, copy]
        if isinstance(layer, keras.layers.Layer):  # other nodes are operations without weights
            self.pairs.append((layer, copy))
        return copy

    def _call(self, layer, *args, **kwargs):
        """Call the copy of a layer, or the replacement of a dense attention."""
        if id(layer) not in self.dense:
            with initialize_with_zeros():  # the original's weights are copied later
                return layer(*args, **kwargs)
        dense, new = self.dense[id(layer)]
        path = f"{self.path}{dense.name}"
        inputs = dict(zip(("query", "value", "key"), args, strict=False)) | kwargs
        others = [inputs[name] for name in ("value", "key") if inputs.get(name) is not None]
        is_cross = any(other is not inputs["query"] for other in others)
        if is_cross and is_sparse(new):
            raise ValueError(f"`make_layer` must return None for {path}: one of its calls attends to another sequence.")
        if is_cross:
            self.replacement.note_skipped(path, dense, CROSS_ATTENTION)
        elif path not in self.replacement.replaced and path not in self.replacement.skipped:
            self.dense[id(layer)][1] = new = self.replacement.make_sparse_layer(path, dense) or layer
        if not is_sparse(new):
            return new(*args, **kwargs)
        if self.replacement.causal:
            kwargs["use_causal_mask"] = True
        if kwargs.get("use_causal_mask") and not can_be_causal(new):
            raise ValueError(_not_causal(path, new))
        if kwargs.get("attention_mask") is not None:  # Keras also accepts numeric masks
            kwargs["attention_mask"] = keras.ops.cast(kwargs["attention_mask"], "bool")
        return new(*args, **kwargs)


def _not_causal(path, layer):
    return f"`make_layer` must return a layer that can be causal for {path}. Received: {layer!r}."


def _site_reason(site, crossings):
    """Return why the call or parent block of an attention rules out its replacement; None if they do not."""
    is_cross = crossings.get(site.index_path)
    if is_cross is None:  # no symbolic call of the model reached it
        is_cross = _looks_like_cross_attention(site)
    return CROSS_ATTENTION if is_cross else block_reason(site.parent)


def _looks_like_cross_attention(site):
    """Return whether a dense attention inside another layer looks like cross-attention by its name or input sizes."""
    if "cross" in f"{site.attribute} {site.layer.name}".lower():
        return True
    if family_of(site.layer) or unsupported_reason(site.layer):
        return False
    return len(set(input_sizes(site.layer))) > 1
