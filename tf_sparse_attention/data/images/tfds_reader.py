"""Reads the images of a data set of TFDS."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.preparation import prepare


class TfdsReader:
    """The images of a TFDS data set, which is prepared on first use; see `ImageSource`.

    Args:
        builder: `tfds.core.DatasetBuilder`, one feature of which is an image.
        local_dir: folder with files that the builder would download, or None.
        try_gcs: whether a prepared copy may come from the public bucket of TFDS.

    Raises:
        ValueError: If it has no image, or several and none is called "image".
    """

    def __init__(self, builder: Any, local_dir: str | None = None, try_gcs: bool = False) -> None:
        self._builder, self._local_dir, self._try_gcs = builder, local_dir, try_gcs
        self._ready = False
        self.name = builder.info.full_name
        self._feature = _image_feature(builder.info.features, self.name)
        self.fingerprint = f"{self.name}#{self._feature}"
        shape = builder.info.features[self._feature].shape
        self.shape: tuple[int, int, int] | None = None if None in shape else shape

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits. Prepares the data set."""
        self._prepare()
        return tuple(self._builder.info.splits)

    def read(self, split: str) -> Iterator[tuple[str, np.ndarray | str]]:
        """Yields the images of a split, with their numbers as names."""
        tfds, known = import_tfds(), self.splits
        if known and split.split("[")[0] not in known:
            raise ValueError(
                f"`split` must be one of {', '.join(known)} in {self.name}, or a part of one, such as train[:90%] and "
                f"train[90%:]. Received: split={split}."
            )
        # Files are read sequentially: an order that depends on the number of readers is not reproducible.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = self._builder.as_dataset(split=split, shuffle_files=False, read_config=config)
        images = examples.map(lambda example: example[self._feature]).prefetch(2)
        for number, image in enumerate(images.as_numpy_iterator()):
            yield f"image {number} of {split} of {self.name}", image

    def _prepare(self):
        if not self._ready:
            prepare(self._builder, self._local_dir, self._try_gcs)
            self._ready = True


def _image_feature(features, name):
    """Returns the name of the feature that is an image, "image" if there are several."""
    image = import_tfds().features.Image
    flat = dict(features.items()) if hasattr(features, "items") else {}
    found = [key for key, feature in flat.items() if isinstance(feature, image)]
    if len(found) > 1 and "image" in found:
        return "image"
    if len(found) != 1:
        raise ValueError(
            "`tfds` must be a data set with an image in each example, called 'image' if there are several. "
            f"Received: {name} with the features {', '.join(flat) or features}."
        )
    return found[0]
