"""Decoders in GGUF files, the format of llama.cpp."""

from tf_sparse_attention.convert.gguf.models import from_gguf

__all__ = ["from_gguf"]
