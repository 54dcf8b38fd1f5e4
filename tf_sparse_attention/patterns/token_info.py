"""Token information, the input of mask rules."""

from collections.abc import Mapping
from typing import NamedTuple

from tf_sparse_attention.types import Tensor


class Place(NamedTuple):
    """The places of queries or of keys, as `Pattern.visible` is asked about them: many at once, in arrays.

    Those of queries and those of keys broadcast against each other. They are NumPy arrays where they are constants and
    tensors otherwise; the operators of Python (`-`, `//`, `%`, `<`, `==`, `abs`) work on both.

    Attributes:
        position: int, positions in the sequence; with a memory of earlier text keys before it have negative ones. A
            pattern with a `period` gets them moved by whole periods.
        start: int, the position at which the document of a token begins; 0 where nothing is packed.
        known: what else is known, by name: "group" and "rank" in the group where content decides. Each is an attribute
            too: `query.group`.
    """

    position: Tensor
    start: Tensor = 0
    known: Mapping[str, Tensor] = {}

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.known[name]
        except KeyError:
            raise AttributeError(f"Nothing known as {name!r} of this place, only {sorted(self.known)}.") from None
