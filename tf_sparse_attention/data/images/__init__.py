"""Images as sequences of bytes, and batches of them."""

from tf_sparse_attention.data.images.batches import ImageBatches, image_evaluation_batches, pack_images
from tf_sparse_attention.data.images.codec import ImageCodec

__all__ = ["ImageBatches", "ImageCodec", "image_evaluation_batches", "pack_images"]
