"""The task of audio: a language model of the samples of recordings, bytes of mu-law."""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import components, workdir
from tf_sparse_attention.trainers.tasks import audio_samples, audio_scores
from tf_sparse_attention.trainers.tasks.byte_task import ByteTask
from tf_sparse_attention.trainers.tasks.parts import Generated, Request, TrainingData
from tf_sparse_attention.trainers.tasks.settings import LANGUAGE_MODEL, SAMPLING, Names


class Task(ByteTask):
    """A language model of recordings; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        codec: the `AudioCodec` of its recordings. None: that of the data, opened when it is needed.
    """

    items = "recordings"
    codec_class = tsa.data.AudioCodec
    settings: ClassVar[Names] = {
        "data": ("sample_rate", "use_packing", "overlap"),
        "model": LANGUAGE_MODEL,
        "train": ("evaluation_windows",),
        "generate": ("length", *SAMPLING),
    }
    found_in = "a folder of WAV files or a file NAME.npz"
    scores_class = audio_scores.Validation

    @functools.cached_property
    def source(self) -> tsa.data.AudioSource:
        """The recordings that `config.data` names."""
        return tsa.data.open_audio(**self.source_options("sample_rate"))

    def make_codec(self) -> tsa.data.AudioCodec:
        """Returns the codec of the recordings that `config.data` names."""
        return tsa.data.AudioCodec(self.source.sample_rate)

    def open_split(self, split: str) -> tsa.data.TokenStore:
        """Returns the recordings of a split as ids, on the disk."""
        if self.source.sample_rate != self.codec.sample_rate:
            raise ValueError(
                f"`config.data` must have recordings of {self.codec.sample_rate} samples a second, which the model is "
                f"for. Received: {self.source.name} of {self.source.sample_rate}."
            )
        return tsa.data.open_token_store(self.source, self.codec, split)

    def open_data(self) -> TrainingData:
        """Returns segments of the recordings of the training split."""
        data, source, store = self.config.data, self.source, self.open_split(self.config.data.train_split)
        seconds = store.num_bytes / self.codec.sample_rate
        logging.info("%s: %d recordings, %.0f seconds to train on", source.name, store.num_documents, seconds)
        batches = components.make_batches(self.config, store)
        return TrainingData(source, source.fingerprint, batches, data.batch_size * data.sequence_length)

    def write_saved_model(
        self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None
    ) -> pathlib.Path:
        """Writes what `export_audio` does."""
        sizes = self.config.data.sequence_length, self.config.data.batch_size
        return tsa.export.export_audio(model, path, self.codec, *sizes, jit_compile, weight_dtype)

    def plain_item(self) -> tuple[str, dict[str, Any]]:
        """Returns a tenth of a second of silence."""
        count = max(1, self.codec.sample_rate // 10)
        return f"silence of {count} samples", {"samples": [[0] * count], "num_samples": [count]}

    def generate(
        self,
        folder: str | os.PathLike,
        request: Request,
        show: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Generated:
        """Draws sound, or continues a WAV file, with the model of a work folder; see `audio_samples.generate`."""
        folder = workdir.open_workdir(folder)
        request = request._replace(path=folder / audio_samples.SAMPLES if request.path is None else request.path)
        player = audio_samples.Player(workdir.load_model(folder), self.codec, self.config.generate.to_dict())
        return audio_samples.generate(player, request, show)
