"""Reads TFDS data sets in a fixed order, with or without TensorFlow."""

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.backends import has_tensorflow
from tf_sparse_attention.data.optional import data_folder, import_tfds
from tf_sparse_attention.data.sources.readers import split_error
from tf_sparse_attention.data.sources.tfds_preparation import (
    is_array_record,
    iterate,
    make_builder,
    name_without_config,
    pg19_fingerprint,
    prepare,
)

# Names of text features by priority, for data sets with several strings, such as text and title.
TEXT_FEATURES = ("text", "book_text", "content", "document", "article", "story")
NOT_TEXT = ("id", "filename", "file_name", "image/filename", "url")  # string features that are not text


class TfdsReader:
    """A TFDS data set, prepared on first use.

    Args:
        builder: `tfds.core.DatasetBuilder`.
        fields: names of the features to read.
        local_dir: folder with the files that the builder would download, or None.
        try_gcs: whether prepared data may be read from the public bucket of TFDS.
        variant: suffix of the name in the fingerprint. Default: "".

    Attributes:
        name: full name with configuration and version, such as "tiny_shakespeare/1.0.0".
        fingerprint: string that identifies the content and fields, also before the data set is prepared.
        fields: as above.
        features: `tfds.features.FeaturesDict` of the data set.
        data_dir: folder of TFDS, a string because it can be in a bucket.
    """

    def __init__(
        self,
        builder: Any,
        fields: Sequence[str],
        local_dir: str | None = None,
        try_gcs: bool = False,
        variant: str = "",
    ) -> None:
        self._builder, self._local_dir, self._try_gcs = builder, local_dir, try_gcs
        self._is_ready = False
        self.name = builder.info.full_name
        self.fields, self.features = tuple(fields), builder.info.features
        self.fingerprint = f"{self.name}{variant}#{','.join(self.fields)}"
        self.data_dir = str(builder.data_dir_root)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits. Prepares the data set."""
        self._prepare()
        return tuple(self._builder.info.splits)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Iterate over the examples of a split, `bytes` for text and arrays for other features; see `Reader.examples`.

        Raises:
            ValueError: If there is no such split.
            ImportError: If the format of the prepared data needs TensorFlow, which is not installed.
        """
        # Mocks of TFDS can have no splits.
        names = {term.split("[")[0].strip() for term in split.split("+")}
        if self.splits and not names <= {*self.splits, "all"}:
            raise split_error(split, self.name, self.splits)
        if is_array_record(self._builder):
            examples = iterate(self._builder.as_data_source(split=split), self._builder)
            return ({field: example[field] for field in self.fields} for example in examples)
        if not has_tensorflow():
            raise ImportError(
                f"Reading {self.name} needs TensorFlow, because it was prepared as "
                f"{self._builder.info.file_format.value}. Install TensorFlow, or prepare the data in another folder: "
                "set `data_dir`, in the trainers --config.data.data_dir=FOLDER."
            )
        # One file at a time: otherwise the order depends on the number of readers.
        config = import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = self._builder.as_dataset(split=split, shuffle_files=False, read_config=config)
        dataset = dataset.map(lambda example: {field: example[field] for field in self.fields}).prefetch(2)
        return iterate(dataset.as_numpy_iterator(), self._builder)

    def _prepare(self):
        if not self._is_ready:
            prepare(self._builder, self._local_dir, self._try_gcs)
            self._is_ready = True


def open_tfds(
    name: str | None,
    find_fields: Callable[[Any], Sequence[str]],
    data_dir: str | os.PathLike | None = None,
    local_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
) -> TfdsReader:
    """Open a data set of TFDS. For other arguments and errors see `text_source.open_source`.

    Args:
        find_fields: function of the `tfds.features.FeaturesDict` that returns the names of the features to read.
    """
    local, variant = _checked_folder(local_dir), ""
    if local is not None and name_without_config(str(name)) == "pg19":
        variant = f"@local_{pg19_fingerprint(local)}"
        data_dir = os.path.join(data_folder(data_dir), variant[1:])
    builder = make_builder(name, data_dir, try_gcs)
    return TfdsReader(builder, find_fields(builder.info.features), local, try_gcs, variant)


def _checked_folder(local_dir):
    if local_dir is None:
        return None
    folder = pathlib.Path(local_dir).expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(f"`local_dir` must be an existing folder. Received: local_dir={local_dir}.")
    return str(folder)


def find_text_feature(features: Any, text_feature: str | None = None) -> str:
    """Return the name of the feature with the text of an example.

    Args:
        features: `tfds.features.FeaturesDict`.
        text_feature: name of the feature. None: the only string feature that is not a file name, id or URL. If there
            are several, the first of text, book_text, content, document, article and story.

    Raises:
        ValueError: If the named feature is not a string, or the choice is ambiguous.
    """
    flat = _flat(features)
    strings = [name for name, feature in flat.items() if _is_string(feature)]
    if text_feature is None:
        texts = [name for name in strings if name not in NOT_TEXT]
        known = [name for name in TEXT_FEATURES if name in texts] or (texts if len(texts) == 1 else [])
        text_feature = known[0] if known else None
    if text_feature is None or text_feature not in strings:
        raise ValueError(
            "`text_feature` must be a string feature of the data set. "
            f"Received: text_feature={text_feature}, string features: {', '.join(strings) or 'none'}, "
            f"all features: {', '.join(flat) or features}."
        )
    return text_feature


def _is_string(feature):
    # Nested features have a dictionary of shapes. The NumPy dtype of strings is object.
    return getattr(feature, "shape", None) == () and np.dtype(feature.np_dtype) == object


def find_media_feature(features: Any, kind: str, item: str) -> str:
    """Return the name of the only feature of a kind ("Image", "Audio"). If there are several: "image" or "audio".

    Raises:
        ValueError: If there is no such feature, or the choice is ambiguous.
    """
    flat = _flat(features)
    names = [name for name, feature in flat.items() if isinstance(feature, getattr(import_tfds().features, kind))]
    if len(names) != 1 and kind.lower() not in names:
        raise ValueError(
            f"`tfds` must be a data set with {item} in each example. If there are several, one must be named "
            f"{kind.lower()!r}. "
            f"Received: features {', '.join(flat) or features}."
        )
    return names[0] if len(names) == 1 else kind.lower()


def _flat(features):
    return dict(features.items()) if hasattr(features, "items") else {}
