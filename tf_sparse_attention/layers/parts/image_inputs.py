"""Images (B, H, W, D) as inputs of attention: their pixels row by row are the tokens."""

import math
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.checks import check_static
from tf_sparse_attention.layers.parts.masks import as_tensor, implicit_mask
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Shape, Tensor


def is_image(x: Tensor | None) -> bool:
    """Return whether an input is images, not sequences."""
    return x is not None and len(x.shape) == 4


def sequence_shape(layer: keras.layers.Layer, sizes: Shape) -> Shape:
    """Return the shape (B, H W, D) of images (B, H, W, D) as sequences, that of sequences as it is.

    Raises:
        ValueError: for images that are not of the layer's width or height, order, or without its class tokens, and for
            `attention_axes` that are not all axes of positions.
    """
    axes = getattr(layer, "attention_axes", None)
    if axes is not None and len(axes) != len(sizes) - 2:
        raise ValueError(
            "`attention_axes` must be None, or (1,) for sequences and (1, 2) for images: all positions attend. "
            f"Received: attention_axes={axes}, inputs of shape {tuple(sizes)}."
        )
    if len(sizes) != 4:
        return sizes
    batch, *pixels, features = sizes
    image = getattr(layer, "image", None)
    if image is not None:
        _check_image(layer, image, pixels)
    return batch, None if None in pixels else math.prod(pixels), features  # type: ignore[arg-type]  # none is None


def _check_image(layer, image, pixels):
    (height, width), most = pixels, image.height
    if width not in (None, image.width) or (None not in (height, most) and height > most):
        raise ValueError(
            f"Images must be {image.width} pixels wide{'' if most is None else f' and at most {most} high'}, as "
            f"{layer.name} was made. Received: {height} rows of {width} pixels."
        )
    if image.order != "raster" or layer.num_class_tokens:
        raise ValueError(
            "Images are read row by row: `order` must be 'raster' and `num_class_tokens` 0; pass a sequence otherwise. "
            f"Received: order={image.order!r}, num_class_tokens={layer.num_class_tokens}."
        )


def as_sequences(
    layer: keras.layers.Layer, query: Tensor, value: Tensor | None, key: Tensor | None, **masks: Tensor | None
) -> dict[str, Any]:
    """Return arguments of a call of an attention layer with images as the sequences of their pixels.

    Args:
        layer: an `AttentionLayer`.
        query: as in a call; likewise `value` and `key`.
        **masks: masks and ids of tokens by name, (B, H, W) of images; those of the query unless they are
            "value_mask", "key_mask" or "value_segment_ids".
    """
    source = query if value is None else value
    owners = {"value_mask": source, "key_mask": source if key is None else key, "value_segment_ids": source}
    flat = {name: _of_pixels(owners.get(name, query), name, mask) for name, mask in masks.items()}
    for name, x in (("query", query), ("value", value), ("key", key)):
        if x is not None and is_image(x):
            sequence_shape(layer, x.shape)  # which it has to have
            batch, height, width, features = shape(x)
            if ops.is_tensor(width):  # of a program for any width: another one than the layer's does not fit
                width = getattr(getattr(layer, "image", None), "width", width)
            x = ops.reshape(x, (batch, height * width, features))
        flat[name] = x
    return flat


def _of_pixels(x, name, mask):
    """Return a mask or ids (B, H, W) of the tokens of images as (B, H W), the implicit mask where there is none."""
    if not is_image(x):
        return mask
    mask = implicit_mask(x) if mask is None and "mask" in name else as_tensor(mask)
    if mask is None or len(mask.shape) != 3:
        return mask
    batch, *pixels, _ = x.shape
    check_static(name, mask.shape, ((batch, 1), *((size,) for size in pixels)))
    return ops.reshape(mask, (shape(mask)[0], -1))


def as_images(results: Any, query: Tensor) -> Any:
    """Return what a call returned for sequences, the output (B, T, ...) and perhaps the weights, as for `query`."""
    if not is_image(query):
        return results
    output, *weights = results if isinstance(results, tuple) else (results,)
    output = ops.reshape(output, (*shape(query)[:3], *shape(output)[2:]))
    return (output, *weights) if weights else output
