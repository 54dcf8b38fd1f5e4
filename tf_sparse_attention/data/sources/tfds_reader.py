"""Reads the images or the sound of a data set of TFDS."""

from collections.abc import Iterator
from typing import Any

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.reading import read_feature
from tf_sparse_attention.data.sources.tfds_preparation import prepare


class MediaReader:
    """One feature of the examples of a TFDS data set, which is prepared on first use.

    Args:
        builder: `tfds.core.DatasetBuilder`.
        kind: class of the feature in `tfds.features`, such as "Image"; of several such features the one is taken that
            is called so in lower case.
        item: what errors call it, with its article, such as "an image".
        local_dir: folder with files that the builder would download, or None.
        try_gcs: whether a prepared copy may come from the public bucket of TFDS.

    Attributes:
        name: that of the data set.
        fingerprint: string that identifies its content.
        feature: the feature, of `tfds.features`.

    Raises:
        ValueError: If it has no such feature, or several and none of that name.
    """

    def __init__(self, builder: Any, kind: str, item: str, local_dir: str | None = None, try_gcs: bool = False) -> None:
        self._builder, self._local_dir, self._try_gcs = builder, local_dir, try_gcs
        self._item = item.partition(" ")[2]
        self._ready = False
        self.name = builder.info.full_name
        self._key = _find_feature(builder.info.features, self.name, kind, item)
        self.fingerprint = f"{self.name}#{self._key}"
        self.feature: Any = builder.info.features[self._key]

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits. Prepares the data set."""
        self._prepare()
        return tuple(self._builder.info.splits)

    def read(self, split: str) -> Iterator[tuple[str, Any]]:
        """Yields the arrays of a split, with their numbers as names."""
        self._prepare()
        for number, array in enumerate(read_feature(self._builder, split, self._key)):
            yield f"{self._item} {number} of {split} of {self.name}", array

    def _prepare(self):
        if not self._ready:
            prepare(self._builder, self._local_dir, self._try_gcs)
            self._ready = True


def _find_feature(features, name, kind, item):
    """Returns the name of the feature of a kind; if there are several, the kind's own."""
    flat = dict(features.items()) if hasattr(features, "items") else {}
    found = [key for key, feature in flat.items() if isinstance(feature, getattr(import_tfds().features, kind))]
    if len(found) > 1 and kind.lower() in found:
        return kind.lower()
    if len(found) != 1:
        raise ValueError(
            f"`tfds` must be a data set with {item} in each example, called {kind.lower()!r} if there are several. "
            f"Received: {name} with the features {', '.join(flat) or features}."
        )
    return found[0]
