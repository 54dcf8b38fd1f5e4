"""Images: where they come from, as sequences of bytes, and the batches of these."""

from tf_sparse_attention.data.images.batches import ImageBatches, image_evaluation_batches, pack_images
from tf_sparse_attention.data.images.codec import ImageCodec
from tf_sparse_attention.data.images.source import ImageSource, open_images

__all__ = [
    "ImageBatches",
    "ImageCodec",
    "ImageSource",
    "image_evaluation_batches",
    "open_images",
    "pack_images",
]
