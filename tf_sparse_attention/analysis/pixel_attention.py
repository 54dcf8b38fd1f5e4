"""Attention weights for one pixel of an image."""

from typing import Any

import keras
import numpy as np

from tf_sparse_attention.analysis.attention_rows import record_attentions
from tf_sparse_attention.data import ImageCodec


def pixel_attention(
    model: keras.Model, codec: ImageCodec, image: np.ndarray, pixel: tuple[int, int], channel: int = 0
) -> list[np.ndarray]:
    """Return the attention weights for the prediction of one byte of a pixel by a language model of images.

    The weights of the query that predicts the byte are summed over the channels of each attended pixel. A head's
    weights sum to 1 minus the weight of the start id, the input before the first byte. With successor values, the
    weight is assigned to the byte after a match.

    Args:
        model: a `LanguageModel` of the ids of `codec`.
        codec: an `ImageCodec`.
        image: uint8 (H, W, C).
        pixel: pair of row and column.
        channel: channel of the predicted byte. Default: 0.

    Returns:
        List with one float array (N, H, W) per attention of the model, for N heads.

    Raises:
        ValueError: If the image does not have the pixel or channel. For other reasons, see `record_attentions`.

    Example:
        >>> codec, image = tsa.data.ImageCodec(height=4, width=4), np.zeros((4, 4, 3), np.uint8)
        >>> heads = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 16}
        >>> backbone = tsa.models.Backbone(codec.vocabulary_size, num_layers=1, hidden_dim=16, attention=[heads])
        >>> weights = pixel_attention(tsa.models.LanguageModel(backbone), codec, image, pixel=(2, 1))
        >>> weights[0].shape  # of the first block
        (2, 4, 4)
    """
    place = (*pixel, channel)
    if len(place) != 3 or not all(0 <= at < size for at, size in zip(place, codec.shape, strict=True)):
        raise ValueError(
            f"`pixel` and `channel` must be inside of the image shape {codec.shape}. Received: {pixel} and {channel}."
        )
    ids = np.asarray(codec.encode(image))
    positions = codec.positions()
    query: Any = positions[place]
    inputs = np.pad(ids[:-1], (1, 0))[None]
    found = []
    for attention in record_attentions(model, inputs):
        ((_, weights),) = attention.rows(np.array([query]))
        read = np.append(weights[0, :, 0, 1:], np.zeros_like(weights[0, :, 0, :1]), axis=-1)  # input t + 1 is byte t
        found.append(read[:, positions].sum(axis=-1))
    return found
