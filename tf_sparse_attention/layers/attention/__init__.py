"""Attention layers."""

__all__ = []
