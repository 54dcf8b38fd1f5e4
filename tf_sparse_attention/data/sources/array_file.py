"""Reads files NAME.npz of arrays, whose names, dtypes and numbers of axes are checked."""

import fnmatch
import os
import pathlib
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Words for several dtypes.
KINDS: dict[str, tuple[Any, ...]] = {
    "integers": (np.integer,),
    "numbers": (np.integer, np.floating),
    "strings": (np.str_,),
}
# What `zipfile` and NumPy raise for damaged bytes, wherever they are.
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile)


class Form(NamedTuple):
    """What an array of a file has to be.

    Attributes:
        dtype: name of a dtype, such as "int16", or one of "integers", "numbers" and "strings".
        axes: their names, such as "NHWC", or sizes, such as "2"; "" of a single value.
        is_needed: whether the file must have it. Default: True.
    """

    dtype: str
    axes: str = ""
    is_needed: bool = True

    def fits(self, array: np.ndarray) -> bool:
        """Returns whether an array is so."""
        kinds = KINDS.get(self.dtype)
        is_kind = array.dtype == self.dtype if kinds is None else any(np.issubdtype(array.dtype, k) for k in kinds)
        sizes = array.shape if array.ndim == len(self.axes) else None
        return (
            is_kind
            and sizes is not None
            and all(not axis.isdigit() or int(axis) == size for axis, size in zip(self.axes, sizes, strict=True))
        )

    def __str__(self) -> str:
        comma = "," if len(self.axes) == 1 else ""
        return f"{self.dtype} ({', '.join(self.axes)}{comma})" if self.axes else f"one of {self.dtype}"


def read_arrays(path: str | os.PathLike, forms: Mapping[str, Form], argument: str = "path") -> dict[str, np.ndarray]:
    """Returns the arrays of a file NAME.npz that are asked for, by name; others in it are not read.

    Args:
        path: the file.
        forms: what each array has to be, by its name or a pattern of names, such as "x_*", of those that may be there.
        argument: what errors call `path`. Default: "path".

    Raises:
        ValueError: In one line that names the file, if it is missing, no file of named arrays or damaged, if an array
            is missing, or one has another dtype or another number of axes.
    """
    try:
        with pathlib.Path(path).open("rb") as content:
            arrays = _load(content, forms)
    except DAMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"`{argument}` must be a whole file NAME.npz. Received: {path}: {reason}.") from error
    needed = [name for name, form in forms.items() if form.is_needed]
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(
            f"`{argument}` must hold the arrays {', '.join(needed)}. Received: {path}, without {missing[0]}."
        )
    for name, array in arrays.items():
        form = _form_of(name, forms)
        if form is not None and not form.fits(array):
            raise ValueError(
                f"`{argument}` must hold `{name}` as {form}. "
                f"Received: {path} with {array.dtype} of shape {array.shape}."
            )
    return arrays


def checked_offsets(
    arrays: Mapping[str, np.ndarray],
    name: str,
    values: str,
    path: str | os.PathLike,
    argument: str = "path",
    num_parts: int | None = None,
) -> np.ndarray:
    """Returns the offsets of a file, int64 (N + 1,): part n of an array is `array[offsets[n] : offsets[n + 1]]`.

    Args:
        arrays: those of the file, see `read_arrays`.
        name: of the offsets, integers (N + 1,).
        values: name of the array that they divide.
        path: the file, for errors.
        argument: what errors call it. Default: "path".
        num_parts: N, 1 or more. Default: None, any.

    Raises:
        ValueError: If there is no part, or they do not rise from 0 to the length of the array.
    """
    count, found = len(arrays[values]), arrays[name].astype("int64")  # unsigned ones would never fall
    is_wrong_number = len(found) < 2 or num_parts not in (None, len(found) - 1)
    if is_wrong_number or found[0] != 0 or found[-1] != count or (np.diff(found) < 0).any():
        number = "" if num_parts is None else f"{num_parts + 1} "
        raise ValueError(
            f"`{argument}` must hold {number}`{name}` that rise from 0 to {count}, the length of `{values}`. "
            f"Received: {len(found)} that begin {found[:6].tolist()} in {path}."
        )
    return found


def _load(content, forms):
    """Returns the arrays of an open file that are asked for."""
    file = np.load(content, allow_pickle=False)
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ValueError("one array without a name")
    with file:
        arrays = {name: file[name] for name in file.files if _form_of(name, forms) is not None}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
    return arrays


def _form_of(name, forms):
    return next((form for pattern, form in forms.items() if fnmatch.fnmatchcase(name, pattern)), None)
