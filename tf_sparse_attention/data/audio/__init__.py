"""Audio samples as bytes."""

from tf_sparse_attention.data.audio.codec import AudioCodec

__all__ = ["AudioCodec"]
