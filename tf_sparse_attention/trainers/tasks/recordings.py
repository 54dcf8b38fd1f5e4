"""Recordings to transcribe, from a file or a split."""

import itertools
import pathlib
import reprlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.data.sources.array_file import ArraySpec, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.media_files import decode_mono

SUFFIXES = (".wav", ".npz")
FORMS = {
    "features": ArraySpec("numbers", "TF"),
    "offsets": ArraySpec("integers", "N", is_needed=False),
    "scale": ArraySpec("numbers", "2", is_needed=False),
}


def find_recordings(task: Any, data: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield recordings as dictionaries: "name", "features" (T, F), and for a split "reference", the transcript.

    Args:
        task: a `trainers.tasks.speech.Task`.
        data: a file NAME.wav or NAME.npz, or the name of a split.
        count: maximum number of recordings of a split.

    Raises:
        ValueError: If the file or split is invalid, or `data` is the content of a file.
    """
    if min(data, default=" ") < " ":  # control characters: file content of --prompt_file
        raise ValueError(
            "`prompt` must be the name of a file NAME.wav or NAME.npz, or a split: --prompt=NAME.wav. "
            f"Received: {reprlib.repr(data)}."
        )
    if data.lower().endswith(SUFFIXES):
        yield from read_recordings(data, task.get_state()["features"])
        return
    store = task.open_store(data)
    for number in range(min(count, store.num_utterances)):
        reference = store.transcript(store.label_ids(number))
        yield {"name": f"{data}[{number}]", "features": store.features(number), "reference": reference}


def read_recordings(path: str, description: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the recordings of a file as dictionaries: "name" and "features" (T, F).

    Args:
        path: NAME.wav, or NAME.npz with the array "features" (T, F). Optional arrays: "offsets", the start of each
            recording and the end of the last recording, and "scale", see `tsa.data.open_speech`.
        description: settings of the features; see `SpeechSource`.

    Raises:
        ValueError: If the file is invalid or damaged, or the model was trained on features and the file has audio.
    """
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`prompt` must be an existing file NAME.wav or NAME.npz, or a split. Received: {path}.")
    if file.suffix.lower() == ".wav":
        if "sample_rate" not in description:
            raise ValueError(f"`prompt` must be a file with features, like the training data. Received: {path}.")
        samples = decode_mono(file.read_bytes(), file, description["sample_rate"])
        yield {"name": file.name, "features": tsa.data.LogMel(**description)(samples)}
        return
    arrays = read_arrays(file, FORMS, "prompt")
    features, scale = arrays["features"].astype("float32"), arrays.get("scale")
    arrays.setdefault("offsets", np.array([0, len(features)]))
    offsets = checked_offsets(arrays, "offsets", "features", file, "prompt")
    if scale is not None:
        features = scale[0] + (scale[1] - scale[0]) * features / 255
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        yield {"name": f"{file.name}[{number}]", "features": features[begin:end]}
