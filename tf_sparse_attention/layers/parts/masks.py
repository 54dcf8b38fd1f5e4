"""The masks of a call: implicit ones found, explicit ones checked, all of them merged into `TokenMasks`."""

import math
import warnings
from typing import TypeAlias, TypeVar

import keras
from keras import ops

from tf_sparse_attention.checks import check_dense, check_static
from tf_sparse_attention.layers.parts.integers import as_integers
from tf_sparse_attention.ops.masks import TokenMasks, expand_attention_mask, merge
from tf_sparse_attention.types import Tensor

Maybe = TypeVar("Maybe")  # a tensor, or None
Masks: TypeAlias = dict[str, Tensor | None]  # those of a call, by name


def normalize_self_attention(
    query: Tensor, value: Tensor | None, key: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Returns `value` and `key`, or None for both where they are the query: self-attention.

    To be called before Keras casts the inputs to the compute dtype, which makes three tensors of one.

    Raises:
        ValueError: if there is no query, or an input is ragged.
    """
    if query is None:
        raise ValueError("`query` must be a tensor (batch, positions, features). Received: query=None.")
    for name, x in (("query", query), ("value", value), ("key", key)):
        check_dense(name, x)
    return (None, None) if value is query and (key is None or key is query) else (value, key)


def implicit_mask(x: Tensor) -> Tensor | None:
    """Returns the mask that a Keras tensor carries, or None."""
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
    """Returns the `TokenMasks` of a call of an attention layer, whose arguments these are.

    In self-attention (`value` None) a token is a query and a key, and `query_mask` masks both.
    """
    self_attention = value is None
    attention_mask = as_tensor(attention_mask)
    query_mask = mask_of_tokens("query_mask", query_mask, query)
    source = query if value is None else value
    value_mask = mask_of_tokens("value_mask", value_mask, source)
    key_mask = mask_of_tokens("key_mask", key_mask, source if key is None else key)
    if self_attention:
        value_mask = merge(query_mask, value_mask)
    batch, queries, keys = query.shape[0], query.shape[1], source.shape[1]
    if attention_mask is not None:
        check_attention_mask(attention_mask, batch, num_heads, queries, keys)
    segments = _documents(query, value, segment_ids, value_segment_ids)
    return TokenMasks(query_mask, merge(value_mask, key_mask), expand_attention_mask(attention_mask), *segments)


def _documents(query, value, segment_ids, value_segment_ids):
    """Returns the documents of queries and of keys, int (B, T) and (B, S), or None twice."""
    if value_segment_ids is not None and (value is None or segment_ids is None):
        raise ValueError(
            "`value_segment_ids` must be None without `segment_ids`, and in self-attention, where those are of both. "
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


def mask_of_tokens(name: str, mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Returns a mask (B, T) of the tokens of `x` as booleans, that which `x` carries if `mask` is None, or None."""
    mask = implicit_mask(x) if mask is None else as_tensor(mask)
    if mask is None:
        return None
    check_not_additive(name, mask)
    check_static(name, mask.shape, ((x.shape[0], 1) if x.shape[0] is not None else (None,), (x.shape[1],)))
    return ops.cast(mask, "bool")


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens (B, T, D) with zeros where their mask (B, T) is False.

    Without it NaN or infinity in padding reaches other tokens, and the gradients of all weights, by 0 * NaN.
    """
    return x if mask is None else ops.where(mask[..., None], x, 0)


def finite_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens (B, T, D) with zeros in place of NaN and infinity where their mask (B, T) is False.

    As `zero_padding`, for residual branches, through which padding that is finite keeps its own values.
    """
    return x if mask is None else ops.where(ops.logical_or(mask[..., None], ops.isfinite(x)), x, 0)


def hide_from_attention(x: Tensor, name: str, masks: Masks) -> tuple[Tensor, Masks]:
    """Returns tokens and the masks of a call in which their padding is hidden from attention and is there all the same.

    As published: padding attends, and takes places in clusters, but no token sees it.

    Args:
        x: float (B, T, D), the tokens, which may carry a mask; what is returned carries none.
        name: of their mask among the masks.
        masks: masks of a call of an attention layer, by name.
    """
    mask, attention_mask = mask_of_tokens(name, masks[name], x), as_tensor(masks.get("attention_mask"))
    if mask is None:
        return x, masks
    if attention_mask is not None:
        check_not_additive("attention_mask", attention_mask)
    pairs = merge(expand_attention_mask(attention_mask), mask[:, None, None, :])
    return ops.copy(x), {**masks, name: None, "attention_mask": pairs}


def as_tensor(x: Maybe) -> Maybe:
    """Returns lists as a tensor; what has a shape, and None, as it is."""
    return x if x is None or hasattr(x, "shape") else ops.convert_to_tensor(x)


def check_not_additive(name: str, mask: Tensor) -> None:
    """Raises a `ValueError` for a mask of floats, whose zeros may mean either of two things, or a ragged mask."""
    check_dense(name, mask)
    if "float" in keras.backend.standardize_dtype(mask.dtype):
        raise ValueError(
            f"`{name}` must be boolean, True where a token may be seen: ones and zeros become that by `mask != 0`, an "
            "additive mask, of zeros and large negative numbers, by `mask == 0`. "
            f"Received: {name} of dtype {keras.backend.standardize_dtype(mask.dtype)}."
        )


def check_attention_mask(
    mask: Tensor, batch: int | None, num_heads: int, queries: int | None, keys: int | None
) -> None:
    """Raises a `ValueError` unless `mask` is boolean and its sizes broadcast to (batch, num_heads, queries, keys)."""
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
            "`attention_mask` of rank 2 must have shape (T, S); a mask of padding, (B, S), is a `query_mask` or a "
            f"`key_mask`. Received: attention_mask of shape {tuple(mask.shape)}, {queries} queries."
        )
    check_static("attention_mask", mask.shape, expected[len(mask.shape)])
    is_ambiguous = len(mask.shape) == 2 and tuple(mask.shape) == (batch, keys) == (queries, keys) and batch != 1
    if is_ambiguous and None not in mask.shape:
        warnings.warn(
            "`attention_mask` of rank 2 says which queries see which keys, (T, S). A mask of padding, which would have "
            "the same shape (B, S) here, is a `query_mask` or a `key_mask`. Rank 3 avoids the doubt: `mask[None]`.",
            stacklevel=2,
        )
    if None not in mask.shape and math.prod(mask.shape) >= 2**31:
        raise ValueError(
            "`attention_mask` must have fewer than 2^31 entries; leave axes that are all alike at size 1, and use "
            "`segment_ids` for packed documents. "
            f"Received: attention_mask of shape {tuple(mask.shape)}."
        )
