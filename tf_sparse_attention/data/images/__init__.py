"""Images as sequences of bytes."""

from tf_sparse_attention.data.images.codec import ImageCodec

__all__ = ["ImageCodec"]
