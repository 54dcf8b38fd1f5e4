"""Conversion of dense Keras models to sparse attention with the same weights."""

from collections.abc import Callable

import keras

from tf_sparse_attention.convert.swap.dense_attention import is_keras_attention
from tf_sparse_attention.convert.swap.families import quantized_reason
from tf_sparse_attention.convert.swap.model_copy import is_plain_graph
from tf_sparse_attention.convert.swap.replacement import Replacement
from tf_sparse_attention.convert.swap.symbolic_calls import SymbolicCalls
from tf_sparse_attention.models.swapped_model import find_layer_sites


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
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"`model` must be a built `keras.Model`. Received: model={model!r}.")
    if not callable(make_layer) or isinstance(make_layer, keras.layers.Layer | type):
        raise ValueError(f"`make_layer` must be a function of a layer. Received: make_layer={make_layer!r}.")
    for site in find_layer_sites(model):
        if is_keras_attention(site.layer) and site.layer.built and (reason := quantized_reason(site.layer)):
            raise ValueError(f"`model` must not be quantized. Received: {model.name} with {site.path}: {reason}.")
    replacement = Replacement(make_layer, causal, keep_windows)
    copy = replacement.copy_model(model)
    # For a plain graph, the copy already has sparse nodes.
    calls = SymbolicCalls(model if is_plain_graph(model) else copy)
    sparse = replacement.replace_sublayers(copy, calls.crossings)
    report = replacement.report()
    if not replacement.replaced:
        raise ValueError(f"`model` must have attention that can be replaced. Received: {model.name}.\n{report}")
    if error := calls.error_of(sparse):
        raise ValueError(
            "`model` must run with sparse attention: let `make_layer` return None for layers where it cannot. "
            f"Received: {model.name}, whose copy raises {type(error).__name__}: {error}\n{report}"
        ) from error
    if print_fn is not None:
        print_fn(report)
    if (sampler := getattr(model, "sampler", None)) is not None:  # used by KerasHub's `generate`
        sparse.sampler = type(sampler).from_config(sampler.get_config())
    return sparse
