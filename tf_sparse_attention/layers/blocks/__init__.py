"""Transformer blocks, feed-forward layers and frame subsampling."""

__all__ = []
