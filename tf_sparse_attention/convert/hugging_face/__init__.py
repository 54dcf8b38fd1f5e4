"""Checkpoints in the layout of Hugging Face: Longformer and BigBird."""

from tf_sparse_attention.convert.hugging_face.encoder import from_hugging_face

__all__ = ["from_hugging_face"]
