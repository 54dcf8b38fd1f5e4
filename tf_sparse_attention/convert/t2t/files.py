"""Files of TensorFlow 1 checkpoints, given as a prefix, a folder or a zip file."""

import contextlib
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping

import keras
import numpy as np

from tf_sparse_attention.types import Tensor

INDEX = ".index"


class Checkpoint:
    """Reader of a checkpoint's variables, one at a time.

    `open_checkpoint` creates it.

    Attributes:
        prefix: path of the files without their suffixes, a `pathlib.Path`.
        shapes: dictionary of the shapes of all variables, by name.

    Args:
        prefix: path of the files without their suffixes.
    """

    def __init__(self, prefix: pathlib.Path) -> None:
        self.prefix = prefix
        self._reader = self._translate_errors(lambda tf: tf.train.load_checkpoint(str(prefix)))
        self.shapes = {name: tuple(shape) for name, shape in self._reader.get_variable_to_shape_map().items()}
        self._dtypes = self._reader.get_variable_to_dtype_map()

    def read(self, name: str) -> np.ndarray:
        """Return a variable as a NumPy array.

        Raises:
            ValueError: If the files are damaged, or values are not finite.
        """
        value = self._translate_errors(lambda tf: self._reader.get_tensor(name))
        _check_finite(name, np.isfinite(value).all())
        return value

    def read_tensor(self, name: str) -> Tensor:
        """Return a float variable like `read`; on TensorFlow, as a tensor, so that assigning it needs no copy."""
        if keras.backend.backend() != "tensorflow":
            return self.read(name)
        import tensorflow as tf

        files = {"prefix": str(self.prefix), "tensor_names": [name], "shape_and_slices": [""]}
        value = self._translate_errors(lambda tf: tf.raw_ops.RestoreV2(**files, dtypes=[self._dtypes[name]])[0])
        _check_finite(name, bool(tf.reduce_all(tf.math.is_finite(value))))
        return value

    def _translate_errors(self, read):
        import tensorflow as tf

        try:
            return read(tf)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(
                "`path` must be a complete TensorFlow checkpoint, PREFIX.index and all its PREFIX.data-* files. "
                f"Received: {self.prefix.name}, and TensorFlow's message: {reason}"
            ) from error


def _check_finite(name, finite):
    if not finite:
        raise ValueError(f"`path` must have finite values. Received: {name} with infinities or NaN.")


@contextlib.contextmanager
def open_checkpoint(path: str | os.PathLike) -> Iterator[Checkpoint]:
    """Open the checkpoint at a path.

    Args:
        path: prefix of the files ("model.ckpt-100000"), one of the files, a folder with one checkpoint, or a zip file
            with one checkpoint. A zip file is unpacked into a temporary folder, which is deleted at the end of the
            context.

    Yields:
        A `Checkpoint`.

    Raises:
        ValueError: If there is no checkpoint, several checkpoints, or a damaged checkpoint.
    """
    path = pathlib.Path(path).expanduser()
    with contextlib.ExitStack() as stack:
        if path.is_file() and zipfile.is_zipfile(path):
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="t2t-checkpoint-")))
            _unpack(path, folder)
            yield Checkpoint(_only_prefix(folder, path))
        elif path.suffix == ".zip":
            why = "damaged" if path.exists() else "missing"
            raise ValueError(f"`path` must be a valid zip file if it ends in .zip. Received: path={path}, {why}.")
        elif path.is_dir():
            yield Checkpoint(_only_prefix(path, path))
        else:
            yield Checkpoint(_prefix_of(path))


def write_checkpoint(prefix: str | os.PathLike, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint in TensorFlow 1 format: PREFIX.index and PREFIX.data-00000-of-00001."""
    import tensorflow as tf

    names = sorted(tensors)
    values = [tf.convert_to_tensor(tensors[name]) for name in names]
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def _unpack(archive, folder):
    try:
        with zipfile.ZipFile(archive) as files:
            files.extractall(folder)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"`path` must be a complete zip file. Received: {archive}: {error}.") from error


def _only_prefix(folder, path):
    """Return the prefix of the only checkpoint in a folder, without the file `checkpoint`, which may be outdated."""
    found = sorted(file.with_suffix("") for file in folder.rglob("*" + INDEX))
    found = [prefix for prefix in found if list(prefix.parent.glob(f"{prefix.name}.data-*"))]
    if len(found) != 1:
        names = ", ".join(str(prefix.relative_to(folder)) for prefix in found) or "none"
        raise ValueError(
            "`path` must have exactly one checkpoint, PREFIX.index and PREFIX.data-*, or be its prefix. "
            f"Received: path={path}, with {names}."
        )
    return found[0]


def _prefix_of(path):
    name = path.name
    if name.endswith((INDEX, ".meta")) or ".data-" in name:
        path = path.with_name(name.rsplit(".data-" if ".data-" in name else ".", 1)[0])
    if not path.with_name(path.name + INDEX).is_file():
        raise ValueError(
            "`path` must be the prefix of a checkpoint, or a folder or zip file with one checkpoint. "
            f"Received: path={path}, without {path.name}{INDEX}."
        )
    return path
