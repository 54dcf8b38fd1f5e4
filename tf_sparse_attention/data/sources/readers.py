"""The protocol of readers, which iterate over the examples of a data set in a fixed order."""

import functools
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

_PART = re.compile(r"([\w-]+)(?:\[(-?\d+(?:\.\d+)?%|-?\d+|):(-?\d+(?:\.\d+)?%|-?\d+|)\])?")


class Reader(Protocol):
    """Reader of a data set, one example at a time and in a fixed order.

    Attributes:
        name: name for logs and files.
        fingerprint: string that changes with the content.
    """

    name: str
    fingerprint: str

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Iterate over the examples of a split, always in the same order.

        Args:
            split: name of a split, a part ("train[:90%]", "train[100:]") or a sum ("train+test") in TFDS syntax.

        Raises:
            ValueError: If the split does not exist.
        """


class ListReader:
    """Reader of listed items, such as files or array indices, which `read` converts to examples on use.

    `items` has a list or array of items per split. Splits without items are left out.
    """

    def __init__(
        self, name: str, fingerprint: str, items: Mapping[str, Any], read: Callable[[Any], dict[str, Any]]
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self._items, self._read = {split: members for split, members in items.items() if len(members)}, read

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._items)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Iterate over the examples of a split; see `Reader.examples`."""
        parts = parse_split(split, self.name, self.splits)
        return itertools.chain.from_iterable(map(self._read_part, parts))

    def _read_part(self, part):
        members = self._items[part.split]
        return (self._read(members[index]) for index in part.indices(len(members)))


class Part(NamedTuple):
    """Split, or slice of a split with bounds such as "10%" or "-5"; "" is no bound."""

    split: str
    begin: str | None = None
    end: str | None = None

    @property
    def is_slice(self) -> bool:
        """Whether the part is a slice of a split."""
        return self.begin is not None

    def indices(self, count: int) -> range:
        """Return the indices of the part for `count` examples, or raise a `ValueError` if a bound exceeds `count`."""
        return range(count)[self._bound(self.begin, count) : self._bound(self.end, count)]

    def _bound(self, text, count):
        if not text:
            return None
        bound = round(float(text[:-1]) * count / 100) if text.endswith("%") else int(text)
        if abs(bound) > count:
            raise ValueError(
                f"`split` must have bounds of at most {count}, the size of {self.split}. Received: {text}."
            )
        return bound


def parse_split(split: str, name: str, known: Sequence[str]) -> list[Part]:
    """Parse a split such as "train", "train[:90%]" or "train+test[-100:]", or raise a `ValueError`."""
    matches = [_PART.fullmatch(term) for term in re.split(r"\s*\+\s*", split)]
    parts = [Part(*match.groups()) for match in matches if match and match[1] in known]
    if len(parts) < len(matches):
        raise split_error(split, name, known)
    return parts


def split_error(split: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown split."""
    return ValueError(
        f"`split` must be one of {', '.join(known)} in {name}, or a part of one, such as train[:90%] and train[90%:]. "
        f"Received: split={split}."
    )


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning once per process, because programs read a data set several times."""
    logging.warning("%s", message)
