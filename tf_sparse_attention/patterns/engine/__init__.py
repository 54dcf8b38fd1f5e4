"""Computation of any pattern from its mask rule, arrangement and cache: attention, dense reference masks, decoding.

Patterns do not import these modules.
"""

__all__ = []
