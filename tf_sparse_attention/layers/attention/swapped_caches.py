"""Caches of this library for layers inside models of others, which hand them caches of their own.

The method of a model that decodes hands every layer a part of one tensor. A model with replaced attention says in a
context which caches its layers have in truth; inside it the layers use those, and hand back the part that they got.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass
class CachesInUse:
    """The caches of the layers of a model during one of its calls.

    Attributes:
        caches: by the id of a layer, its cache before the call, afterwards the one after it.
        kept: tokens of the prompt that the caches are to have, an integer or int32 (); None in a step.
        called: the ids of the layers that attended, one for each time.
    """

    caches: dict[int, Any]
    kept: Size | None = None
    called: list[int] = dataclasses.field(default_factory=list)

    def attend(self, layer: keras.layers.Layer, x: Tensor, index: Size) -> Tensor:
        """Returns the output (B, T, D) of an attention layer for a prompt, or for the token at `index`."""
        cache = self.caches[id(layer)]
        self.called.append(id(layer))
        if self.kept is None:
            output, self.caches[id(layer)] = layer.decode(x, cache, index)
        else:
            output, self.caches[id(layer)] = layer.prefill(x, cache, kept=self.kept)
        return output


_in_use: contextvars.ContextVar[CachesInUse | None] = contextvars.ContextVar("caches_in_use", default=None)


def caches_in_use(layer: keras.layers.Layer) -> CachesInUse | None:
    """Returns what the calling model said of the caches of an attention layer, or None if it said nothing."""
    used = _in_use.get()
    return used if used is not None and id(layer) in used.caches else None


@contextlib.contextmanager
def using_caches(
    layers: Sequence[keras.layers.Layer], caches: Sequence[Any], kept: Size | None = None
) -> Iterator[CachesInUse]:
    """Context in which attention layers use some caches.

    Args:
        layers: attention layers of this library.
        caches: for each what its `init_cache`, `prefill` or `decode` returned.
        kept: see `CachesInUse`.
    """
    used = CachesInUse({id(layer): cache for layer, cache in zip(layers, caches, strict=True)}, kept)
    token = _in_use.set(used)
    try:
        yield used
    finally:
        _in_use.reset(token)
