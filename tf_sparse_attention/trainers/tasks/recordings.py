"""Finds the recordings that are to be transcribed: of a file, or of a split."""

import itertools
import pathlib
import reprlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.data.sources.array_file import Form, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.wav_file import decode_mono

SUFFIXES = (".wav", ".npz")
FORMS = {
    "features": Form("numbers", "TF"),
    "offsets": Form("integers", "N", is_needed=False),
    "scale": Form("numbers", "2", is_needed=False),
}


def find_recordings(task: Any, what: str, count: int) -> Iterator[tuple[str, np.ndarray, str | None]]:
    """Yields names, features (T, F), and transcripts or None.

    Args:
        task: a `trainers.tasks.speech.Task`.
        what: a file NAME.wav or NAME.npz, or the name of a split.
        count: recordings at most, of a split.

    Raises:
        ValueError: for another file or split, or what is in a file, which --prompt_file gives.
    """
    if min(what, default=" ") < " ":  # control characters, which no name has
        raise ValueError(
            "`prompt` must be an existing file NAME.wav or NAME.npz, or a split, in words: --prompt=NAME.wav. "
            f"Received: {reprlib.repr(what)}."
        )
    if what.lower().endswith(SUFFIXES):
        for name, features in read_recordings(what, task.get_state()["features"]):
            yield name, features, None
        return
    store = task.open_store(what)
    for number in range(min(count, store.num_utterances)):
        yield f"{what}[{number}]", store.features(number), store.transcript(store.label_ids(number))


def read_recordings(path: str, description: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and features (T, F) of the recordings in a file.

    Args:
        path: NAME.wav, where features are made of sound; or NAME.npz with the array "features" (T, F), and with several
            recordings "offsets", where each begins and the last ends; "scale" as in `tsa.data.open_speech`.
        description: how features are made, see `SpeechSource`.

    Raises:
        ValueError: for another file or a damaged one, or sound where the model reads features of another kind.
    """
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`prompt` must be an existing file NAME.wav or NAME.npz, or a split. Received: {path}.")
    if file.suffix.lower() == ".wav":
        if "sample_rate" not in description:
            raise ValueError(f"`prompt` must be a file of features, which the model was trained on. Received: {path}.")
        samples = decode_mono(file.read_bytes(), file, description["sample_rate"])
        yield file.name, tsa.data.LogMel(**description)(samples)
        return
    arrays = read_arrays(file, FORMS, "prompt")
    features, scale = arrays["features"].astype("float32"), arrays.get("scale")
    arrays.setdefault("offsets", np.array([0, len(features)]))
    offsets = checked_offsets(arrays, "offsets", "features", file, "prompt")
    if scale is not None:
        features = scale[0] + (scale[1] - scale[0]) * features / 255
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        yield f"{file.name}[{number}]", features[begin:end]
