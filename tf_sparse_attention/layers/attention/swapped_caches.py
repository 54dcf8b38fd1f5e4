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

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass
class Prompt:
    """A prompt that fills the caches of a model.

    The model may put other tokens in front of the prompt, such as the tokens of an image. The caches have these too.

    Attributes:
        length: tokens of the prompt, padding included, an integer or int32 ().
        kept: how many of them the caches are to have, likewise.
        max_length: positions of the caches of the model itself, likewise. None: not known yet.
        fits: whether the caches of the layers can take the place of the model's own.
    """

    length: Size
    kept: Size
    max_length: Size | None = None
    fits: bool = True


@dataclasses.dataclass
class CachesInUse:
    """The caches of the layers of a model during one of its calls.

    Attributes:
        caches: by the id of a layer, its cache before the call, afterwards the one after it. A prompt creates
            new caches; a layer that it does not reach has an empty dictionary.
        prompt: the prompt of the call, or None for a step.
        called: the ids of the layers that attended, one for each time.
    """

    caches: dict[int, Any]
    prompt: Prompt | None = None
    called: list[int] = dataclasses.field(default_factory=list)

    def attend(self, layer: keras.layers.Layer, x: Tensor, index: Size) -> Tensor:
        """Returns the output (B, T, D) of an attention layer for a prompt, or for the token at `index`."""
        self.called.append(id(layer))
        if self.prompt is None:
            output, self.caches[id(layer)] = layer.decode(x, self.caches[id(layer)], index)
            return output
        prompt, (rows, length, _) = self.prompt, shape(x)
        max_length = length if prompt.max_length is None else prompt.max_length
        if isinstance(length, int) and isinstance(max_length, int) and length != max_length:
            prompt.fits = False  # the first step is not at the position after the prompt
        cache = layer.init_cache(rows, max_length)
        output, self.caches[id(layer)] = layer.prefill(x, cache, kept=prompt.kept + length - prompt.length)
        return output


_in_use: contextvars.ContextVar[CachesInUse | None] = contextvars.ContextVar("caches_in_use", default=None)


def caches_in_use(layer: keras.layers.Layer) -> CachesInUse | None:
    """Returns what the calling model said of the caches of an attention layer, or None if it said nothing."""
    used = _in_use.get()
    return used if used is not None and id(layer) in used.caches else None


@contextlib.contextmanager
def using_caches(
    layers: Sequence[keras.layers.Layer], caches: Sequence[Any], prompt: Prompt | None = None
) -> Iterator[CachesInUse]:
    """Context in which attention layers use some caches.

    Args:
        layers: attention layers of this library.
        caches: for each what its `init_cache`, `prefill` or `decode` returned; an empty dictionary with a prompt.
        prompt: see `CachesInUse`.
    """
    used = CachesInUse({id(layer): cache for layer, cache in zip(layers, caches, strict=True)}, prompt)
    token = _in_use.set(used)
    try:
        yield used
    finally:
        _in_use.reset(token)
