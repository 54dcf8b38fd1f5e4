"""Cases of sliding windows over sharded sequences, which are compared with one device."""

from typing import NamedTuple

HEADS, SIZE = 2, 4


class Case(NamedTuple):
    """A window, what it is of, and the devices: 4 for the sequence, or 2 for it and 2 for the batch."""

    length: int
    window: int
    causal: bool
    has_padding: bool = False
    mesh: str = "4"


CASES = (
    Case(32, 1, True),  # nothing is exchanged
    Case(32, 5, True),
    Case(32, 5, False, True),
    Case(32, 9, True, True),  # the part of a device and one more
    Case(32, 10, False),
    Case(32, 20, True, True),  # three devices before
    Case(32, 20, False, True),
    Case(32, 99, True),  # everything
    Case(32, 99, False, True),
    Case(4, 3, True),  # one position a device
    Case(160, 34, True, True),
    Case(160, 34, False),
    Case(32, 7, True, True, "2x2"),
    Case(32, 7, False, False, "2x2"),
)
