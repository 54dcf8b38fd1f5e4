"""Attributes of layers that are others for a while."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras


@contextlib.contextmanager
def replaced(attributes: Iterable[tuple[keras.Layer, str, Any]]) -> Iterator[None]:
    """Context in which each (layer, name, value) is an attribute; afterwards the layers are restored."""
    # Past the layers' `__setattr__`, which tracks what it is given.
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
