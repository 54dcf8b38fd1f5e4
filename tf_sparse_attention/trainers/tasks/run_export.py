"""The export of a run in one of three formats: the body of `tsa-export`."""

import os
from collections.abc import Sequence
from typing import Any

from tf_sparse_attention.checks import check_choice
from tf_sparse_attention.trainers.shared.exporting import SAVED_MODEL
from tf_sparse_attention.trainers.shared.portable_files import WRITERS, export_portable
from tf_sparse_attention.trainers.tasks import registry

FORMATS = (SAVED_MODEL, *WRITERS)


def export_run(
    folder: str | os.PathLike,
    kind: str = SAVED_MODEL,
    signatures: Sequence[str] | None = None,
    weight_dtype: str | None = None,
    jit_compile: bool = True,
) -> dict[str, Any]:
    """Writes the model of a work folder into it, in a format for use without the library.

    Args:
        folder: the work folder.
        kind: one of `FORMATS`. Default: "saved_model".
        signatures: of LiteRT and ONNX, which are written, see `export_portable`. Default: None, all.
        weight_dtype, jit_compile: of SavedModels, see `tsa.export.export_language_model`. Default: None and True.

    Returns:
        Dictionary: "path", and "proof", what was compared or tried, as text.

    Raises:
        ValueError: If an argument is of another format, or the model cannot be written in this one; a reason is given.
    """
    check_choice("kind", kind, FORMATS)
    if kind == SAVED_MODEL:
        if signatures is not None:
            raise ValueError(f"`--signatures` must be unset for SavedModels. Received: signatures={signatures}.")
        result = registry.load_task(folder).export(folder, jit_compile, weight_dtype)
        return {**result, "proof": f"loaded in a process without the library, {result['proof']}"}
    if weight_dtype is not None:
        raise ValueError(f"`--weight_dtype` must be unset for {kind} files. Received: {weight_dtype}.")
    return export_portable(folder, kind, signatures)
