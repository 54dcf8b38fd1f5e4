"""Dense Keras models made sparse, with their weights."""

from collections.abc import Callable

import keras

from tf_sparse_attention.convert.swap.decoders import quantized_reason
from tf_sparse_attention.convert.swap.dense_attention import is_keras_attention
from tf_sparse_attention.convert.swap.model_copy import is_plain_graph
from tf_sparse_attention.convert.swap.replacement import Replacement
from tf_sparse_attention.convert.swap.symbolic_calls import SymbolicCalls
from tf_sparse_attention.models.layer_sites import find_layer_sites


def replace_attention(
    model: keras.Model,
    make_layer: Callable[[keras.layers.Layer], keras.layers.Layer | None],
    causal: bool = False,
    keep_windows: bool = True,
    print_fn: Callable[[str], object] | None = print,
) -> keras.Model:
    """Return a copy of a dense model with sparse attention of the same weights.

    Every `keras.layers.MultiHeadAttention` or `GroupQueryAttention` used for self-attention is replaced, whether it is
    a node of a functional model or inside other layers, as in KerasHub's `TransformerEncoder` and `TransformerDecoder`;
    and the attention of KerasHub's decoders, see `arguments_of`. Calls and masks do not change, the model keeps its
    methods, including `generate`, which decodes with caches of the new layers, and it can be saved and loaded wherever
    this library is imported, presets after `register_presets()`. Where a dense attention has a sliding window, the
    smaller of it and the new layer's window applies, and the report says so, as it does where a new layer sees beyond
    it, or has another cap or scale than a decoder. A window as long as the sequence gives the results of the dense
    model. Cross-attention and subclasses that compute something else are not replaced.

    A call with symbolic inputs shows how the model calls its attention. If these inputs are unknown, for example of a
    subclass without `build`, cross-attention inside other layers is recognized by "cross" in its name or by
    sizes that differ. The copy is called with the same symbolic inputs. Constructor arguments that a config omits are
    read from attributes of the same name.

    Args:
        model: a built `keras.Model`: functional, Sequential, or reconstructible from its config. It is not changed.
        make_layer: function of a dense attention layer that returns an unbuilt attention layer of this library to
            replace it with, or None to keep it. `arguments_of` returns the arguments that both layers share. The parts
            of a `MixedAttention` take consecutive heads.
        causal: whether the masks that the model passes to its attention hide later positions, which patterns that
            depend on it cannot see from a mask. Not needed where the model passes Keras's `use_causal_mask`, nor for
            KerasHub's decoders. Default: False.
        keep_windows: whether the window of a dense attention limits that of the new layer. False: new layers see what
            `make_layer` says, for models whose windows are not those that were published. Default: True.
        print_fn: function that takes the report: a line for each attention, replaced or skipped, and why. None for no
            report. Default: `print`.

    Returns:
        A new model, not compiled; one that generates has the sampler of the dense one.

    Raises:
        ValueError: If the model is not built, quantized, or not reconstructible from its config, nothing can be
            replaced, a layer does not fit the weights, or the copy cannot be called.

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
        raise ValueError(f"`model` must be a `keras.Model` that is built. Received: model={model!r}.")
    if not callable(make_layer) or isinstance(make_layer, keras.layers.Layer | type):
        raise ValueError(f"`make_layer` must be a function of a layer. Received: make_layer={make_layer!r}.")
    for site in find_layer_sites(model):
        if is_keras_attention(site.layer) and site.layer.built and (reason := quantized_reason(site.layer)):
            raise ValueError(f"`model` must not be quantized. Received: {model.name} with {site.path}: {reason}.")
    replacement = Replacement(make_layer, causal, keep_windows)
    copy = replacement.copy_model(model)
    # The copy of a plain graph has sparse nodes already.
    calls = SymbolicCalls(model if is_plain_graph(model) else copy)
    sparse = replacement.replace_sublayers(copy, calls.crossings)
    report = replacement.report()
    if not replacement.replaced:
        raise ValueError(f"`model` must have attention that can be replaced. Received: {model.name}.\n{report}")
    if error := calls.error_of(sparse):
        raise ValueError(
            f"`model` must be one that can be called with sparse attention: let `make_layer` return None where it "
            f"cannot. Received: {model.name}, whose copy raises {type(error).__name__}: {error}\n{report}"
        ) from error
    if print_fn is not None:
        print_fn(report)
    if (sampler := getattr(model, "sampler", None)) is not None:  # by which a model of KerasHub generates
        sparse.sampler = type(sampler).from_config(sampler.get_config())
    return sparse
