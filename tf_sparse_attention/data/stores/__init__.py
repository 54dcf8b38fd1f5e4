"""Prepared data sets on disk: arrays that are written once, checked, and memory-mapped."""

__all__ = []
