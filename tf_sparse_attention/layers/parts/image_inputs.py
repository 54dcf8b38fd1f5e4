"""Images (B, H, W, D) as inputs of attention: sequences of their pixels, row by row."""

import math
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.checks import check_static
from tf_sparse_attention.layers.parts.call_masks import as_tensor, implicit_mask
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Shape, Tensor


def is_image(x: Tensor | None) -> bool:
    """Return whether an input is a batch of images."""
    return x is not None and len(x.shape) == 4


def sequence_shape(layer: keras.layers.Layer, sizes: Shape) -> Shape:
    """Return the shape (B, H W, D) of the sequences of images (B, H, W, D), and shapes of sequences unchanged.

    Raises:
        ValueError: if images do not match the width, height, order or class tokens of the layer, or `attention_axes`
            are not all axes of positions.
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
    return batch, None if None in pixels else math.prod(pixels), features  # type: ignore[arg-type]  # all are known


def _check_image(layer, image, pixels):
    (height, width), most = pixels, image.height
    if width not in (None, image.width) or (None not in (height, most) and height > most):
        raise ValueError(
            f"Images must be {image.width} pixels wide{'' if most is None else f' and at most {most} high'} for "
            f"{layer.name}. Received: {height} rows of {width} pixels."
        )
    if image.order != "raster" or layer.num_class_tokens:
        raise ValueError(
            "Images are read row by row: `order` must be 'raster' and `num_class_tokens` 0; pass a sequence otherwise. "
            f"Received: order={image.order!r}, num_class_tokens={layer.num_class_tokens}."
        )


def as_sequences(
    layer: keras.layers.Layer, query: Tensor, value: Tensor | None, key: Tensor | None, **masks: Tensor | None
) -> dict[str, Any]:
    """Convert images among the arguments of a call to sequences of their pixels.

    Args:
        layer: an `AttentionLayer`.
        query: as in a call, like `value` and `key`.
        **masks: masks and ids of tokens by name, (B, H, W) for images. They belong to the query, except for
            "value_mask", "key_mask" and "value_segment_ids".

    Returns:
        All arguments by name.
    """
    source = query if value is None else value
    owners = {"value_mask": source, "key_mask": source if key is None else key, "value_segment_ids": source}
    flat = {name: _of_pixels(owners.get(name, query), name, mask) for name, mask in masks.items()}
    for name, x in (("query", query), ("value", value), ("key", key)):
        if x is not None and is_image(x):
            sequence_shape(layer, x.shape)  # raises an error for invalid shapes
            batch, height, width, features = shape(x)
            if ops.is_tensor(width):  # in a program for any width, only the width of the layer is valid
                width = getattr(getattr(layer, "image", None), "width", width)
            x = ops.reshape(x, (batch, height * width, features))
        flat[name] = x
    return flat


def _of_pixels(x, name, mask):
    """Return a mask or ids (B, H, W) of the pixels of images as (B, H W). None: the implicit mask."""
    if not is_image(x):
        return mask
    mask = implicit_mask(x) if mask is None and "mask" in name else as_tensor(mask)
    if mask is None or len(mask.shape) != 3:
        return mask
    batch, *pixels, _ = x.shape
    check_static(name, mask.shape, ((batch, 1), *((size,) for size in pixels)))
    return ops.reshape(mask, (shape(mask)[0], -1))


def as_images(results: Any, query: Tensor) -> Any:
    """Reshape the results of a call, the output (B, T, ...) and perhaps the weights, to the shape of `query`."""
    if not is_image(query):
        return results
    output, *weights = results if isinstance(results, tuple) else (results,)
    output = ops.reshape(output, (*shape(query)[:3], *shape(output)[2:]))
    return (output, *weights) if weights else output
