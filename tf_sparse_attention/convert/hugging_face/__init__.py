"""Longformer and BigBird checkpoints in Hugging Face format."""

from tf_sparse_attention.convert.hugging_face.encoder import from_hugging_face

__all__ = ["from_hugging_face"]
