"""Conversion of dense Keras models to sparse attention with the same weights."""

import inspect
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
    CROSS_ATTENTION,
    block_reason,
    copy_head_parts,
    family_of,
    keras_form,
    model_reasons,
    note_rotary_positions,
)
from tf_sparse_attention.convert.swap.model_copy import copy_layer, copy_state, is_plain_graph, rebuild_model
from tf_sparse_attention.convert.swap.symbolic_calls import SymbolicCalls
from tf_sparse_attention.layers.attention.attention_checks import can_be_causal
from tf_sparse_attention.layers.attention.swapped_attention import SwappedAttention
from tf_sparse_attention.layers.parts.projections import copy_trainable, input_sizes
from tf_sparse_attention.models.rebuilding import initialize_with_zeros
from tf_sparse_attention.models.swapped_model import (
    LayerSite,
    SwappedModel,
    find_layer_sites,
    scope_around,
    swap,
    swapped_class,
    wrap_for_saving,
)

DECLINED = "make_layer returned None"
# By `id` of a dense layer: its replacement and its report entry, or None and () if it is kept.
Swapped: TypeAlias = dict[int, tuple[SwappedAttention | None, tuple[str, ...]]]


def replace_attention(
    model: keras.Model,
    make_layer: Callable[[keras.layers.Layer], keras.layers.Layer | None],
    causal: bool = False,
    keep_windows: bool = True,
    print_fn: Callable[[str], object] | None = print,
) -> keras.Model:
    """Return a copy of a dense model with sparse attention and the same weights.

    Every self-attention with `keras.layers.MultiHeadAttention` or `GroupQueryAttention` is replaced: nodes of a
    functional model, and layers inside other layers, as in KerasHub's `TransformerEncoder` and `TransformerDecoder`.
    The attention of KerasHub's decoders is also replaced, see `arguments_of`. Cross-attention and subclasses that
    override the computation are not replaced.

    Calls and masks do not change. The model keeps its methods; `generate` uses the caches of the new layers. The model
    can be saved, and loaded wherever this library is imported; presets load after `register_presets()`. If a dense
    attention has a sliding window, the smaller of this window and the new layer's window applies. The report lists each
    changed window, each new layer that sees beyond the sliding window, and each setting of a decoder, such as a soft
    cap or scale, in which the new layer differs. A window as long as the sequence reproduces the dense model.

    A call with symbolic inputs detects which layers are cross-attention. If the model's inputs are unknown, for example
    for a subclass without `build`, cross-attention inside other layers is recognized by "cross" in its name or by
    differing input sizes. The copy is called with the same symbolic inputs. Constructor arguments that a config omits
    are read from attributes of the same name.

    Args:
        model: a built `keras.Model`: functional, Sequential, or reconstructible from its config. It is not changed.
        make_layer: function of a dense attention layer that returns its replacement, an unbuilt attention layer of this
            library, or None to keep the dense layer. `arguments_of` returns the arguments that both layers share. The
            parts of a `MixedAttention` take consecutive heads.
        causal: whether the model passes causal masks to its attention. Patterns whose selection depends on causality
            cannot infer it from a mask. Not needed if the model passes Keras's `use_causal_mask`, nor for KerasHub's
            decoders. Default: False.
        keep_windows: whether the window of a dense attention limits the window of the new layer. If False, new layers
            keep the window that `make_layer` gives them, for models whose windows differ from the published ones.
            Default: True.
        print_fn: function that receives the report: one line per attention, replaced or skipped, with the reason. None
            for no report. Default: `print`.

    Returns:
        A new model, not compiled. A generative model has the sampler of the dense model.

    Raises:
        ValueError: If the model is not built, is quantized or cannot be reconstructed from its config, if no attention
            can be replaced, if a new layer does not fit the weights, or if the copy cannot be called.

    Example:
        >>> inputs = keras.Input((None, 16))
        >>> dense = keras.layers.MultiHeadAttention(2, 8, name="attention")
        >>> model = keras.Model(inputs, dense(inputs, inputs, use_causal_mask=True))
        >>> def make_layer(attention):
        ...     return tsa.layers.LocalAttention(**arguments_of(attention), window=256)
        >>> sparse = replace_attention(model, make_layer)
        replaced  attention: MultiHeadAttention by LocalAttention
    """
    replacement = Replacement(make_layer, causal, keep_windows)
    sparse = replacement.apply(model)
    if print_fn is not None:
        print_fn("\n".join(replacement.report()))
    return sparse


def register_presets() -> None:
    """Register classes so that KerasHub's `from_preset` loads models with replaced attention.

    KerasHub looks up the class of a preset among the classes registered with Keras. `replace_attention` creates the
    class of its result. A program that only loads presets calls this function once before it loads.

    Raises:
        ImportError: If KerasHub is not installed.

    Example:
        >>> tsa.convert.register_presets()
        >>> model = keras_hub.models.CausalLM.from_preset("sparse_llama")  # doctest: +SKIP
    """
    import keras_hub

    kinds = keras_hub.models.Backbone, keras_hub.models.Task
    for found in set(keras.saving.get_custom_objects().values()):
        if inspect.isclass(found) and issubclass(found, kinds) and not issubclass(found, SwappedModel):
            swapped_class(found)  # type: ignore[arg-type]  # a class can be hashed


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
        if not callable(make_layer) or isinstance(make_layer, keras.layers.Layer | type):
            raise ValueError(f"`make_layer` must be a function of a layer. Received: make_layer={make_layer!r}.")
        self.make_layer = make_layer
        self.causal = causal
        self.keep_windows = keep_windows
        self.replaced: dict[str, tuple[str, ...]] = {}
        self.skipped: dict[str, tuple[str, str]] = {}
        self.new_layers: dict[int, keras.layers.Layer] = {}  # results of `make_layer`, by `id`

    def apply(self, model: keras.Model) -> keras.Model:
        """Return a copy of a model with sparse attention; see `replace_attention`."""
        if not isinstance(model, keras.Model) or not model.built:
            raise ValueError(f"`model` must be a built `keras.Model`. Received: model={model!r}.")
        for site in find_layer_sites(model):
            if is_dense_attention(site.layer) and _is_quantized(site.layer):
                raise ValueError(
                    "`model` must not be quantized: replace its attention first, then call `quantize`. "
                    f"Received: {model.name} with quantized {site.path}."
                )
        copy = self.copy_model(model)
        # For a plain graph, the copy already has sparse nodes.
        calls = SymbolicCalls(model if is_plain_graph(model) else copy)
        sparse = self.replace_sublayers(copy, calls.crossings)
        report = "\n".join(self.report())
        if not self.replaced:
            raise ValueError(f"`model` must have attention that can be replaced. Received: {model.name}.\n{report}")
        if error := calls.error_of(sparse):
            raise ValueError(
                "`model` must run with sparse attention: let `make_layer` return None for layers where it cannot. "
                f"Received: {model.name}, whose copy raises {type(error).__name__}: {error}\n{report}"
            ) from error
        if (sampler := getattr(model, "sampler", None)) is not None:  # used by KerasHub's `generate`
            sparse.sampler = type(sampler).from_config(sampler.get_config())
        return sparse

    def report(self) -> list[str]:
        """Return one line per attention."""
        replaced = [
            "; ".join([f"replaced  {path}: {old} by {new}", *remarks])
            for path, (old, new, *remarks) in self.replaced.items()
        ]
        return [*replaced, *self.report_skipped()] or ["no attention found"]

    def report_skipped(self) -> list[str]:
        """Return one line per attention that is not replaced."""
        return [f"skipped   {path}: {old}, {reason}" for path, (old, reason) in self.skipped.items()]

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


def _is_quantized(attention):
    return any(getattr(part, "quantization_mode", None) for part in attention._flatten_layers(include_self=False))


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
        try:
            return new(*args, **kwargs)
        except Exception as error:  # the class of `new` may raise any exception
            raise ValueError(
                f"`model` must run with sparse attention: {path} cannot be a {type(new).__name__}. "
                f"Received: {self.model.name}, whose copy raises {type(error).__name__}: {error}"
            ) from error


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
