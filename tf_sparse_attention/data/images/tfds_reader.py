"""Reads the images of a data set of TFDS."""

from typing import Any

from tf_sparse_attention.data.sources.tfds_reader import MediaReader


class TfdsReader(MediaReader):
    """The images of a TFDS data set, which is prepared on first use; see `ImageSource`.

    Args:
        builder: `tfds.core.DatasetBuilder`, one feature of which is an image.
        local_dir: folder with files that the builder would download, or None.
        try_gcs: whether a prepared copy may come from the public bucket of TFDS.

    Raises:
        ValueError: If it has no image, or several and none is called "image".
    """

    def __init__(self, builder: Any, local_dir: str | None = None, try_gcs: bool = False) -> None:
        super().__init__(builder, "Image", "an image", local_dir, try_gcs)
        shape = self.feature.shape
        self.shape: tuple[int, int, int] | None = None if None in shape else shape
