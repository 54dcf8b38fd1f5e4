"""What computes any pattern from its rule, arrangement and cache: attention, the dense twin, and decoding.

No pattern imports anything from here, and nothing here knows one pattern from another.
"""

__all__ = []
