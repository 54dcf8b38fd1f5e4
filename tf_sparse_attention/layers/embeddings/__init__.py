"""Position embeddings and adaptive vocabularies."""

__all__ = []
