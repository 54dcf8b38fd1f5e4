"""Models of other classes with sparse attention inside, saved and loaded as what they are."""

import functools

import keras

from tf_sparse_attention.layers.swapped_attention import CallMask, SwappedAttention
from tf_sparse_attention.models.layer_sites import places_of

# What KerasHub's decoders ask of the method that makes the mask of all pairs of positions.
MASK_METHOD = "_compute_self_attention_mask"


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SwappedModel:
    """What the class of a model or layer gets beside its own when sublayers are replaced: a config that tells them.

    The config of such a model, or of a layer in it, is made by a class that knows the dense attention alone. So it is
    kept together with the route and config of each `SwappedAttention`; loading makes the dense model and swaps again.
    """

    def get_config(self):
        first, swapped = {}, {}
        for place in places_of(self):
            if not isinstance(place.layer, SwappedAttention):
                continue
            route = first.setdefault(id(place.layer), place.route)  # where a layer stands first, its config is
            is_first = route == place.route
            swapped[place.route] = keras.saving.serialize_keras_object(place.layer) if is_first else route
        return {"model": _dense_config(self), "attention": swapped}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        places = {place.route: place for place in places_of(model)}
        missing = sorted(set(config["attention"]) - set(places))
        if missing:
            raise ValueError(f"`config` must name layers of the {type(model).__name__} in it. Received: {missing}.")
        made = {}
        for route, layer in config["attention"].items():
            if isinstance(places[route].layer, SwappedAttention):  # a layer between told of it
                made[route] = places[route].layer
                continue
            made[route] = made[layer] if isinstance(layer, str) else keras.saving.deserialize_keras_object(layer)
            swap(places[route], made[route])
        return marked(model)


def marked(model):
    """Returns the model itself; its class, and those of all layers above what was replaced, now save that."""
    places = places_of(model)
    routes = [place.route for place in places if isinstance(place.layer, SwappedAttention)]
    for place in places:
        if any(route.startswith(f"{place.route}.") for route in routes):
            _mark(place.layer)
    if routes:
        _mark(model)
    return model


def _mark(layer):
    if not isinstance(layer, SwappedModel):
        layer.__class__ = _swapped_class(type(layer))


@functools.cache
def _swapped_class(kind):
    swapped = type(kind)(
        f"Swapped{kind.__name__}", (SwappedModel, kind), {"__module__": __name__, "__doc__": kind.__doc__}
    )
    # All are loaded by the same name: what class it is to be, its config says.
    return keras.saving.register_keras_serializable(package="tf_sparse_attention", name="SwappedModel")(swapped)


def _dense_config(model):
    """Returns what Keras would have saved of the model before it was marked."""
    swapped = type(model)
    model.__class__ = swapped.__bases__[1]  # the class that it was
    try:
        config = keras.saving.serialize_keras_object(model)
    finally:
        model.__class__ = swapped
    return {name: value for name, value in config.items() if name != "compile_config"}


def swap(place, swapped):
    """Puts a `SwappedAttention` into the place of a built dense attention.

    A decoder of KerasHub makes a mask of all pairs of positions, O(T^2), for attention that is dense; its method hands
    over what the mask is made of instead.

    Args:
        place: `Place` of a `keras.layers.MultiHeadAttention`.
        swapped: a `SwappedAttention`, which gets built.
    """
    projections = place.layer.query_dense, place.layer.value_dense, place.layer.key_dense
    if not swapped.attention.built:
        swapped.attention.build(*((None, None, projection.kernel.shape[0]) for projection in projections))
    if not swapped.built:
        swapped.build((None, None, projections[0].kernel.shape[0]))
    place.put(swapped)
    if hasattr(place.parent, MASK_METHOD):
        setattr(place.parent, MASK_METHOD, _parts_of_mask)


def _parts_of_mask(decoder_sequence, decoder_padding_mask, decoder_attention_mask, use_causal_mask, **cache):
    if decoder_padding_mask is None:
        decoder_padding_mask = getattr(decoder_sequence, "_keras_mask", None)
    return CallMask(decoder_padding_mask, decoder_attention_mask, use_causal_mask)
