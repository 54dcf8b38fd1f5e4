"""Dense Keras models made sparse, with their weights."""

import keras

from tf_sparse_attention.convert.swap.replacement import Replacement


def replace_attention(model, make_layer, causal=False, print_fn=print):
    """Returns a copy of a dense model with sparse attention of the same weights.

    Every `keras.layers.MultiHeadAttention` of self-attention is replaced, whether it is a node of a functional model or
    stands inside other layers, as in KerasHub's `TransformerEncoder` and `TransformerDecoder`, whose cached attention
    goes on decoding with KerasHub's caches. Calls and masks stay as they are, the model keeps its methods, `generate`
    too, and it can be saved, and loaded where this library is imported. Where a dense attention has a `sliding_window`,
    the smaller of it and the new layer's window is applied, and the report says so; it also says where a new layer has
    no window. A window as long as the sequence gives the
    results of the dense model. Not replaced are attention to another sequence and classes that compute something else.

    Args:
        model: a built `keras.Model`: functional, Sequential, or one that its `from_config` can make anew. It stays as
            it is.
        make_layer: function of a dense attention layer that returns an attention layer of this library, not built, for
            its place, or None to leave it: attention to another sequence inside of a layer is known by "cross" in its
            name or by sizes that differ, and else must be left so. `arguments_of` gives what both have in common. Parts
            of a `MixedAttention` take the heads one after the other.
        causal: whether the masks that the model gives its attention hide later positions. A pattern that depends on it
            must be told; `use_causal_mask` of Keras and the decoders of KerasHub tell it anyway. Default False.
        print_fn: function that takes the report: a line for each attention, replaced or left, and why. None: no report.

    Returns:
        A new model, not compiled.

    Raises:
        ValueError: if the model is not built or cannot be made anew, nothing can be replaced, or a layer does not fit
            the weights.

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
    replacement = Replacement(make_layer, causal)
    sparse = replacement.sublayers_swapped(replacement.copy_of(model))
    report = replacement.report()
    if not replacement.replaced:
        raise ValueError(f"`model` must have attention that can be replaced. Received: {model.name}.\n{report}")
    if print_fn is not None:
        print_fn(report)
    return sparse
