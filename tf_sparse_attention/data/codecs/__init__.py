"""Codecs that convert images and audio to sequences of bytes."""

__all__ = []
