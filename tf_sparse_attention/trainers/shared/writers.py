"""Writers of the metrics of a run: terminal, JSON lines, TensorBoard."""

import io
import json
import os
import pathlib
import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tqdm
from absl import logging

from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.data.sources.media_files import encode_wav
from tf_sparse_attention.trainers.shared import workdir
from tf_sparse_attention.trainers.tasks.task import Examples

BAR_METRICS = {"learning_rate": "rate", "gradient_norm": "norm", "tokens_per_second": "tokens/s"}


class Writer:
    """Destination of metrics and examples. Base class; by default, each method does nothing."""

    def progress(self, step: int, loss: float) -> None:
        """Write the loss after an execution."""

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write the scalars of a report."""

    def show(self, step: int, examples: Examples) -> None:
        """Write the texts, pictures and sounds of a validation."""


class Bar(Writer):
    """Progress bar with the newest metrics on a terminal, and a line per validation.

    The bar starts after the first execution, so that the remaining time does not count compilation.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._bar: Any = None
        self._metrics: dict[str, str] = {}

    def progress(self, step: int, loss: float) -> None:
        if self._bar is None:
            options = {"unit": "step", "file": sys.stdout, "mininterval": 0.2}
            self._bar = tqdm.tqdm(total=self._num_steps, initial=step, **options, **_width_arguments(sys.stdout))
        self._bar.set_postfix({"loss": f"{loss:.4g}", **self._metrics}, refresh=False)
        self._bar.update(step - self._bar.n)
        if step >= self._num_steps:
            self._bar.close()

    def write(self, step: int, scalars: dict[str, float]) -> None:
        for key, name in BAR_METRICS.items():
            if key in scalars:
                self._metrics[name] = f"{scalars[key]:,.0f}" if scalars[key] >= 100 else f"{scalars[key]:.3g}"
        if any(name.startswith("validation/") for name in scalars):
            tqdm.tqdm.write(line(step, scalars), file=sys.stdout)


def _width_arguments(stream):
    """Return the arguments of tqdm for its width. Terminals of containers can report a width of 0."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, as in tests
        columns = None
    return {"ncols": 80} if columns == 0 else {"dynamic_ncols": True}


class Lines(Writer):
    """One log line per report."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._created = time.monotonic()
        self._begin: tuple[int, float] | None = None

    def progress(self, step: int, loss: float) -> None:
        if self._begin is None:
            self._begin = step, time.monotonic()
            seconds = self._begin[1] - self._created
            logging.info("step %d/%d: loss %.5g, compiled in %.0f s", step, self._num_steps, loss, seconds)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        remaining = self._remaining(step) if "loss" in scalars else ""
        logging.info("%s", line(f"{step}/{self._num_steps}", scalars) + remaining)

    def _remaining(self, step):
        first, since = self._begin or (step, 0.0)
        if step <= first or step >= self._num_steps:
            return ""
        seconds = round((time.monotonic() - since) / (step - first) * (self._num_steps - step))
        return f", {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"


# Omitted in log lines: perplexity per word is huge early in training with subwords, and loss_peak is for charts.
HIDDEN = ("validation/perplexity_per_word", "loss_peak")
LAYERS = {"routing": "centroids", "span": "span"}  # kinds of scalars per layer, with their displayed names


def line(step: int | str, scalars: dict[str, float]) -> str:
    """Format the scalars of a report as one line, with means over layers of scalars KIND/PATH/NAME."""
    shown: dict[str, float] = {}
    per_layer: dict[str, list[float]] = {}
    for name, value in scalars.items():
        kind, _, rest = name.partition("/")
        if name in HIDDEN or (name == "loss_spikes" and not value):
            continue
        if kind in LAYERS:
            per_layer.setdefault(f"{LAYERS[kind]} {rest.rpartition('/')[2]}", []).append(value)
        else:
            shown[re.sub("[/_]", " ", name)] = value
    shown |= {name: sum(values) / len(values) for name, values in per_layer.items()}
    return f"step {step}: " + ", ".join(f"{name} {value:.5g}" for name, value in shown.items())


class JsonLines(Writer):
    """File with one JSON object per report. A resumed run appends to it.

    Reports of steps after `start_step`, the step of the resumed checkpoint, are deleted: a killed process wrote them.
    """

    def __init__(self, path: pathlib.Path, start_step: int) -> None:
        self._path = path
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            with atomic_file(path) as temporary:
                temporary.write_text(
                    "".join(f"{row}\n" for row in lines if _read_step(row) <= start_step), encoding="utf-8"
                )

    def write(self, step: int, scalars: dict[str, float]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **scalars}) + "\n")


def _read_step(row):
    try:
        return float(json.loads(row)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # incomplete line of a killed process, or a damaged line


class TensorBoard(Writer):
    """Event files for TensorBoard. Training and validation are two runs of TensorBoard, so that they share charts.

    Events are on the disk when a method returns. TensorFlow is not needed. TensorBoard drops events after `start_step`,
    from a killed process. `settings` are listed in the HParams table.
    """

    def __init__(self, folder: str | os.PathLike, start_step: int, settings: Mapping[str, Any]) -> None:
        from tensorboard.plugins.hparams import summary_v2

        self._files = {kind: _new_event_file(os.path.join(folder, kind)) for kind in ("train", "validation")}
        for file in self._files.values():
            _write_event(file, step=start_step + 1, session_log={"status": 1})  # START
        hparams = {name: value for name, value in settings.items() if isinstance(value, (bool, int, float, str))}
        # In the parent folder, so that the table has the metrics of both runs.
        _write_event(_new_event_file(folder), step=0, summary=summary_v2.hparams_pb(hparams))

    def write(self, step: int, scalars: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for kind, file in self._files.items():
            selected = {name: scalars[name] for name in scalars if name.startswith("validation/") == (kind != "train")}
            with np.errstate(over="ignore"):  # a perplexity too large for float32 becomes infinity
                values = {name.removeprefix("validation/"): np.float32(value) for name, value in selected.items()}
            if values:
                items = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                _write_event(file, step=step, summary=Summary(value=items))

    def show(self, step: int, examples: Examples) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text import summary_v2

        values = []
        for name, text in examples.texts.items():
            # Markdown: a code block keeps line breaks and punctuation.
            values += summary_v2.text_pb(name, "".join(f"    {row}\n" for row in text.split("\n"))).value
        for name, picture in examples.pictures.items():
            height, width, channels = picture.shape
            image = Summary.Image(height=height, width=width, colorspace=channels)
            image.encoded_image_string = encode_png(picture)
            values.append(Summary.Value(tag=name, image=image))
        for name, (samples, sample_rate) in examples.sounds.items():
            audio = Summary.Audio(sample_rate=sample_rate, num_channels=1, length_frames=len(samples))
            audio.encoded_audio_string, audio.content_type = encode_wav(samples, sample_rate), "audio/wav"
            values.append(Summary.Value(tag=name, audio=audio))
        _write_event(self._files["validation"], step=step, summary=Summary(value=values))


def _new_event_file(folder):
    """Create an event file of TensorBoard, and return its path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"events.out.tfevents.{time.time_ns():020}.{socket.gethostname()}.{os.getpid()}")
    _write_event(path, file_version="brain.Event:2")
    return path


def _write_event(path, **content):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with open(path, "ab") as file:
        RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


def encode_png(picture: np.ndarray) -> bytes:
    """Encode a picture, uint8 (height, width, 1, 3 or 4), as PNG."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(content, "png")
    return content.getvalue()


def open_writers(folder: pathlib.Path, num_steps: int, start_step: int, settings: Mapping[str, Any]) -> list[Writer]:
    """Create the writers of a run: a bar on a terminal or log lines, and files in the run directory."""
    terminal = Bar(num_steps) if sys.stdout.isatty() else Lines(num_steps)
    metrics = JsonLines(folder / workdir.METRICS, start_step)
    return [terminal, metrics, TensorBoard(folder / workdir.TENSORBOARD, start_step, settings)]
