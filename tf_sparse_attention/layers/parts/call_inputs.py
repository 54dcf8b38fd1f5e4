"""Inputs and masks of a call: images as sequences, implicit and explicit masks, integer ids."""

import math
import warnings
from typing import Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.checks import check_dense, check_static, concrete_values
from tf_sparse_attention.ops.masks import TokenMasks, expand_attention_mask, merge
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Shape, Tensor

Maybe = TypeVar("Maybe")  # a tensor, or None
Masks: TypeAlias = dict[str, Tensor | None]  # masks of a call, by name


def normalize_self_attention(
    query: Tensor, value: Tensor | None, key: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return `value` and `key`, or None for both if they are the query (self-attention).

    Call it before Keras casts the inputs to the compute dtype, which makes three tensors of one.

    Raises:
        ValueError: if `query` is None, or an input is ragged.
    """
    if query is None:
        raise ValueError("`query` must be a tensor (batch, positions, features). Received: query=None.")
    for name, x in (("query", query), ("value", value), ("key", key)):
        check_dense(name, x)
    return (None, None) if value is query and (key is None or key is query) else (value, key)


def implicit_mask(x: Tensor) -> Tensor | None:
    """Return the mask that a Keras tensor carries, or None."""
    return getattr(x, "_keras_mask", None)


def token_masks(
    query: Tensor,
    value: Tensor | None,
    key: Tensor | None,
    query_mask: Tensor | None,
    value_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    value_segment_ids: Tensor | None = None,
    *,
    num_heads: int,
) -> TokenMasks:
    """Return the `TokenMasks` of a call of an attention layer, with the arguments of the call.

    In self-attention (`value` is None), `query_mask` masks queries and keys.
    """
    self_attention = value is None
    attention_mask = as_tensor(attention_mask)
    query_mask = token_mask("query_mask", query_mask, query)
    source = query if value is None else value
    value_mask = token_mask("value_mask", value_mask, source)
    key_mask = token_mask("key_mask", key_mask, source if key is None else key)
    if self_attention:
        value_mask = merge(query_mask, value_mask)
    batch, queries, keys = query.shape[0], query.shape[1], source.shape[1]
    if attention_mask is not None:
        check_attention_mask(attention_mask, batch, num_heads, queries, keys)
    segments = _documents(query, value, segment_ids, value_segment_ids)
    return TokenMasks(query_mask, merge(value_mask, key_mask), expand_attention_mask(attention_mask), *segments)


def _documents(query, value, segment_ids, value_segment_ids):
    """Return the documents of queries and of keys, int (B, T) and (B, S), or (None, None)."""
    if value_segment_ids is not None and (value is None or segment_ids is None):
        raise ValueError(
            "`value_segment_ids` must be None in self-attention and without `segment_ids`. "
            f"Received: value_segment_ids, {'no `value`' if value is None else 'segment_ids=None'}."
        )
    if segment_ids is None:
        return None, None
    of_keys = value_segment_ids
    if value_segment_ids is None:
        of_keys = segment_ids
        if value is not None and query.shape[1] != value.shape[1]:
            raise ValueError(
                "`value_segment_ids` must be given with `segment_ids` where `query` and `value` have different "
                f"lengths. Received: query of shape {tuple(query.shape)}, value of shape {tuple(value.shape)}."
            )
    segment_ids = _checked_documents("segment_ids", segment_ids, query)
    if of_keys is value_segment_ids:
        return segment_ids, _checked_documents("value_segment_ids", of_keys, value)
    return segment_ids, segment_ids


def _checked_documents(name, segment_ids, x):
    segment_ids = as_integers(name, as_tensor(segment_ids))
    check_static(name, segment_ids.shape, ((x.shape[0],), (x.shape[1],)))
    return segment_ids


def token_mask(name: str, mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the mask (B, T) of the tokens of `x` as booleans, by default the mask that `x` carries, or None."""
    mask = implicit_mask(x) if mask is None else as_tensor(mask)
    if mask is None:
        return None
    check_not_additive(name, mask)
    check_static(name, mask.shape, ((x.shape[0], 1) if x.shape[0] is not None else (None,), (x.shape[1],)))
    return ops.cast(mask, "bool")


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Replace tokens (B, T, D) by zeros where their mask (B, T) is False.

    Without it, NaN or infinity in padding reaches other tokens, and the gradients of all weights, by 0 * NaN.
    """
    return x if mask is None else ops.where(mask[..., None], x, 0)


def finite_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Replace NaN and infinity in tokens (B, T, D) by zeros where their mask (B, T) is False.

    For residual branches, where finite padding keeps its values.
    """
    return x if mask is None else ops.where(ops.logical_or(mask[..., None], ops.isfinite(x)), x, 0)


def hide_from_attention(x: Tensor, name: str, masks: Masks) -> tuple[Tensor, Masks]:
    """Mask padding as keys only, as in the published Routing Transformer.

    Padded queries are computed and are members of clusters, but no token attends to padding.

    Args:
        x: float (B, T, D), tokens, which may carry a mask.
        name: name of the mask of the tokens.
        masks: masks of a call of an attention layer, by name.

    Returns:
        Pair of the tokens without a mask, and the masks.
    """
    mask, attention_mask = token_mask(name, masks[name], x), as_tensor(masks.get("attention_mask"))
    if mask is None:
        return x, masks
    if attention_mask is not None:
        check_not_additive("attention_mask", attention_mask)
    pairs = merge(expand_attention_mask(attention_mask), mask[:, None, None, :])
    return ops.copy(x), {**masks, name: None, "attention_mask": pairs}


def as_tensor(x: Maybe) -> Maybe:
    """Convert lists to a tensor; return tensors, arrays and None unchanged."""
    return x if x is None or hasattr(x, "shape") else ops.convert_to_tensor(x)


def check_not_additive(name: str, mask: Tensor) -> None:
    """Raise a `ValueError` for a floating-point mask, whose zeros are ambiguous, and for a ragged mask."""
    check_dense(name, mask)
    if "float" in keras.backend.standardize_dtype(mask.dtype):
        raise ValueError(
            f"`{name}` must be boolean, True where attention is allowed. Convert ones and zeros by `mask != 0`, and an "
            "additive mask of zeros and large negative numbers by `mask == 0`. "
            f"Received: {name} of dtype {keras.backend.standardize_dtype(mask.dtype)}."
        )


def check_attention_mask(
    mask: Tensor, batch: int | None, num_heads: int, queries: int | None, keys: int | None
) -> None:
    """Raise a `ValueError` unless `mask` is boolean and broadcasts to (batch, num_heads, queries, keys)."""
    check_not_additive("attention_mask", mask)
    axes = [(batch, 1), (num_heads, 1), (queries, 1), (keys, 1)]
    expected = {2: axes[2:], 3: [axes[0], *axes[2:]], 4: axes}
    if len(mask.shape) not in expected:
        raise ValueError(
            "`attention_mask` must have rank 2 (T, S), 3 (B, T, S) or 4 (B, N, T, S). "
            f"Received: attention_mask of shape {tuple(mask.shape)}."
        )
    if tuple(mask.shape) == (batch, keys) and batch not in (None, 1, queries):
        raise ValueError(
            "`attention_mask` of rank 2 must have shape (T, S). Pass a padding mask, (B, S), as `query_mask` or "
            f"`key_mask`. Received: attention_mask of shape {tuple(mask.shape)}, {queries} queries."
        )
    check_static("attention_mask", mask.shape, expected[len(mask.shape)])
    is_ambiguous = len(mask.shape) == 2 and tuple(mask.shape) == (batch, keys) == (queries, keys) and batch != 1
    if is_ambiguous and None not in mask.shape:
        warnings.warn(
            "`attention_mask` of rank 2 is interpreted as (T, S). Pass a padding mask, which has the same shape (B, S) "
            "here, as `query_mask` or `key_mask`. Rank 3 avoids the ambiguity: `mask[None]`.",
            stacklevel=2,
        )
    if None not in mask.shape and math.prod(mask.shape) >= 2**31:
        raise ValueError(
            "`attention_mask` must have fewer than 2^31 entries; keep constant axes at size 1, and use `segment_ids` "
            "for packed documents. "
            f"Received: attention_mask of shape {tuple(mask.shape)}."
        )


def as_integers(name: str, ids: Tensor) -> Tensor:
    """Convert ids to integers, because a `keras.Input` without a dtype makes them floats.

    Raises:
        ValueError: for ragged tensors, for half precision, which merges integers above 256, and for values with
            fractions.
    """
    check_dense(name, ids)
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" in dtype:
        return ids
    known = concrete_values(ids)
    has_fractions = known is not None and (known != np.floor(known)).any()
    if dtype in ("float16", "bfloat16", "bool") or has_fractions:
        raise ValueError(
            f"`{name}` must be integers; cast them by `astype('int32')`, and give their `keras.Input` a dtype. "
            f"Received: {dtype}{' with fractions' if has_fractions else ''}."
        )
    return ops.cast(ids, "int32")


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
    flat = {name: _flatten_mask(owners.get(name, query), name, mask) for name, mask in masks.items()}
    for name, x in (("query", query), ("value", value), ("key", key)):
        if x is not None and is_image(x):
            sequence_shape(layer, x.shape)  # raises an error for invalid shapes
            batch, height, width, features = shape(x)
            if ops.is_tensor(width):  # in a program for any width, only the width of the layer is valid
                width = getattr(getattr(layer, "image", None), "width", width)
            x = ops.reshape(x, (batch, height * width, features))
        flat[name] = x
    return flat


def _flatten_mask(x, name, mask):
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
