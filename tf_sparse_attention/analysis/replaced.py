"""Temporary replacement of layer attributes."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras


@contextlib.contextmanager
def replaced(attributes: Iterable[tuple[keras.Layer, str, Any]]) -> Iterator[None]:
    """Set each (layer, name, value) as an attribute within the context, and restore the layers afterwards."""
    # `vars` avoids Keras's `__setattr__`, which tracks attributes.
    before = [(vars(layer), name, vars(layer).get(name, replaced)) for layer, name, _ in attributes]
    try:
        for layer, name, value in attributes:
            vars(layer)[name] = value
        yield
    finally:
        for own, name, value in before:
            if value is replaced:
                own.pop(name, None)
            else:
                own[name] = value
