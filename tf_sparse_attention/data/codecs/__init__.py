"""Codecs that convert images and audio to sequences of bytes."""

from tf_sparse_attention.data.codecs.audio_codec import AudioCodec
from tf_sparse_attention.data.codecs.image_codec import ImageCodec

__all__ = ["AudioCodec", "ImageCodec"]
