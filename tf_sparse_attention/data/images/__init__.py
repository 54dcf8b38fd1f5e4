"""Images: where they come from, as sequences of bytes, and the batches of these."""

from tf_sparse_attention.data.images.codec import ImageCodec
from tf_sparse_attention.data.images.source import ImageSource, open_images

__all__ = [
    "ImageCodec",
    "ImageSource",
    "open_images",
]
