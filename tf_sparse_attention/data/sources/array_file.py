"""Reads arrays from files NAME.npz and checks their names, dtypes and shapes."""

import fnmatch
import os
import pathlib
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Names of groups of dtypes.
KINDS: dict[str, tuple[Any, ...]] = {
    "integers": (np.integer,),
    "numbers": (np.integer, np.floating),
    "strings": (np.str_,),
}
# Errors of `zipfile` and NumPy for damaged files.
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile)


class ArraySpec(NamedTuple):
    """Dtype and shape of an array in a file.

    Attributes:
        dtype: name of a dtype, such as "int16", or "integers", "numbers" or "strings".
        axes: one character per axis: a letter is any size, a digit is an exact size. "NHWC" has 4 axes, "" is a scalar.
        is_needed: whether the array is required. Default: True.
    """

    dtype: str
    axes: str = ""
    is_needed: bool = True

    def fits(self, array: np.ndarray) -> bool:
        """Return whether an array has this dtype and shape."""
        kinds = KINDS.get(self.dtype)
        is_kind = array.dtype == self.dtype if kinds is None else any(np.issubdtype(array.dtype, k) for k in kinds)
        return (
            is_kind
            and array.ndim == len(self.axes)
            and all(not axis.isdigit() or int(axis) == size for axis, size in zip(self.axes, array.shape, strict=True))
        )

    def __str__(self) -> str:
        comma = "," if len(self.axes) == 1 else ""
        return f"{self.dtype} ({', '.join(self.axes)}{comma})" if self.axes else f"a scalar of {self.dtype}"


def read_arrays(
    path: str | os.PathLike, specs: Mapping[str, ArraySpec], argument: str = "path"
) -> dict[str, np.ndarray]:
    """Read arrays from a file NAME.npz.

    Args:
        path: the file.
        specs: dtype and shape of each array, by name or by a pattern of names such as "x_*".
        argument: name of `path` in errors. Default: "path".

    Raises:
        ValueError: If the file is missing or damaged or has no names, or if an array is missing or has another dtype or
            shape. The message has one line.
    """
    try:
        with pathlib.Path(path).open("rb") as content:
            arrays = _load(content, specs)
    except DAMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"`{argument}` must be a complete file NAME.npz. Received: {path}: {reason}.") from error
    needed = [name for name, spec in specs.items() if spec.is_needed]
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(
            f"`{argument}` must hold the arrays {', '.join(needed)}. Received: {path}, without {missing[0]}."
        )
    for name, array in arrays.items():
        spec = _find_spec(name, specs)
        if spec is not None and not spec.fits(array):
            raise ValueError(
                f"`{argument}` must hold `{name}` as {spec}. "
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
    """Return the offsets `name` of a file, int64 (N + 1,). Part n is `arrays[values][offsets[n] : offsets[n + 1]]`.

    Raises:
        ValueError: If N is not `num_parts` or positive, or the offsets decrease, or do not cover 0 to the length of the
            array `values`.
    """
    length, offsets = len(arrays[values]), arrays[name].astype("int64")  # differences of unsigned integers wrap around
    is_wrong_number = len(offsets) < 2 or num_parts not in (None, len(offsets) - 1)
    if is_wrong_number or offsets[0] != 0 or offsets[-1] != length or (np.diff(offsets) < 0).any():
        number = "" if num_parts is None else f"{num_parts + 1} "
        raise ValueError(
            f"`{argument}` must hold {number}`{name}` that rise from 0 to {length}, the length of `{values}`. "
            f"Received: {len(offsets)} offsets, which begin with {offsets[:6].tolist()}, in {path}."
        )
    return offsets


def _load(content, specs):
    file = np.load(content, allow_pickle=False)
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ValueError("one array without a name")
    with file:
        arrays = {name: file[name] for name in file.files if _find_spec(name, specs) is not None}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is not an array")
    return arrays


def _find_spec(name, specs):
    return next((spec for pattern, spec in specs.items() if fnmatch.fnmatchcase(name, pattern)), None)
