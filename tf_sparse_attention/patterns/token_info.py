"""Token information: positions and features of tokens, the input of mask rules."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class TokenInfo:
    """Queries or keys as arguments of a mask rule: arrays of positions and features.

    Arrays of queries and of keys broadcast against each other. Constants are NumPy arrays, other arrays
    are tensors. The operators of Python (`-`, `//`, `%`, `<`, `==`, `abs`) work on both.

    Attributes:
        position: int, positions in the sequence. Keys of a segment memory have negative ones. If the pattern has a
            `period`, positions may be shifted by multiples of it.
        features: int, further features by name, such as "group" and "rank" of content-based patterns. Each is an
            attribute as well: `query.group`.
        document_start: function that returns `start`, or None without packed documents.
    """

    position: Tensor
    features: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    document_start: Callable[[], Tensor] | None = None

    @property
    def start(self) -> Tensor:
        """The position at which the document of the token begins, int; 0 without packed documents."""
        return 0 if self.document_start is None else self.document_start()

    def __getattr__(self, name: str) -> Tensor:
        features = self.__dict__.get("features", {})
        if name not in features:
            raise AttributeError(f"Token information has no feature {name!r}, only {sorted(features)}.")
        return features[name]


class TokenFeatures(NamedTuple):
    """Features of tokens that a mask rule reads, by name.

    Attributes:
        query: int32 (B or 1, n, T), of queries.
        key: int32 (B or 1, m, S), of keys.
    """

    query: Mapping[str, Tensor]
    key: Mapping[str, Tensor]

    def features(self) -> Self:
        """Return these features, as a `Selection` does."""
        return self
