"""The task of audio: a language model of the samples of recordings, bytes of mu-law."""

import functools
import os
import pathlib
from typing import Any, ClassVar

import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.data.sources.wav_file import decode_wav, encode_wav, mix_down
from tf_sparse_attention.trainers.shared import components, illustrations, sampling
from tf_sparse_attention.trainers.tasks.byte_task import ByteTask, ByteValidation
from tf_sparse_attention.trainers.tasks.settings import LANGUAGE_MODEL, SAMPLING, Names
from tf_sparse_attention.trainers.tasks.task import Examples, Generated, Request, Show, Trial

SAMPLES = "samples.wav"
SHORTEST = 32  # samples of a transform in a picture
SIZE = (8, 2)  # inches of each half of a picture


class Validation(ByteValidation):
    """Scores recordings, and draws a sample; `data` is their token store."""

    metric, items = "bits_per_byte", "recordings"

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Returns windows of the recordings."""
        data = self.task.config.data
        sizes = data.batch_size, data.sequence_length, data.use_packing
        return {"": tsa.data.evaluation_batches(self.data, *sizes, max_windows=self.limit, overlap=data.overlap)}

    def num_items(self) -> int:
        return self.data.num_documents

    def examples(self) -> Examples:
        """Returns the first recording and a sample of the model, as pictures and sound, and the use of clusters."""
        task, codec = self.task, self.task.codec
        ids = self.data.document(0)[:-1]  # without the padding after it
        sounds = {"recording": codec.decode(ids)}
        if self.can_draw():
            (sample,) = task.generate(self.model, Request()).samples
            sounds["sample"] = codec.decode(sample["token_ids"])
        shown, pictures = self.clusters.examples(ids[: task.config.data.sequence_length]), {}
        if illustrations.has_matplotlib():
            pictures = {name: as_picture(samples, codec.sample_rate) for name, samples in sounds.items()}
        with_rates = {name: (samples, codec.sample_rate) for name, samples in sounds.items()}
        return shown._replace(pictures=pictures | shown.pictures, sounds=with_rates)


class Task(ByteTask):
    """A language model of recordings; see `trainers.tasks.task.Task`."""

    codec_class = tsa.data.AudioCodec
    settings: ClassVar[Names] = {
        "data": ("sample_rate", "use_packing", "overlap"),
        "model": LANGUAGE_MODEL,
        "train": ("evaluation_windows",),
        "generate": ("length", *SAMPLING),
    }
    found_in = "a folder of WAV files or a file NAME.npz"
    validation = Validation

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
                f"`config.data` must have recordings of {self.codec.sample_rate} samples per second, which the model "
                f"is for. Received: {self.source.name} of {self.source.sample_rate}."
            )
        return tsa.data.open_token_store(self.source, self.codec, split)

    def training_batches(self) -> tsa.data.Batches:
        """Returns segments of the recordings of the training split."""
        source, store = self.source, self.open_split(self.config.data.train_split)
        seconds = store.num_bytes / self.codec.sample_rate
        logging.info("%s: %d recordings, %.0f seconds to train on", source.name, store.num_documents, seconds)
        return components.make_batches(self.config, store)

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Draws sound from the beginning of a recording, or continues that of a WAV file, and writes WAV files.

        Args:
            model: the model.
            request: its `prompt` is the content of a WAV file of the model's sample rate, or None; `length` is in
                samples; `path` is NAME.wav, and of several samples the files are NAME_0.wav and so on.
            show: function of all samples so far, called whenever they grow. Default: None.

        Returns:
            `Generated`, whose samples are as those of `ByteTask.draw`; the path is that of the first file.

        Raises:
            ValueError: For a request that does not suit sound.
        """
        path = sampling.output_path(request.path, SAMPLES)
        self.check_request(request._replace(path=path), ("complete",), ".wav", same_prompt=True)
        prompt = _ids_of(self.codec, request.prompt)
        length = self.config.generate.length if request.length is None else request.length
        checks.check_count("length", length)
        paths = _paths(path, request.num_samples)

        def write(samples):
            for path, sample in zip(paths, samples, strict=False):  # after an interruption there are less
                write_wav(path, self.codec.decode(sample["token_ids"]), self.codec.sample_rate)

        samples = self.draw(model, request, lambda numbers: [prompt] * len(numbers), len(prompt) + length, write, show)
        rows = self.describe_samples(samples)
        named = [f"{row}, {path}" for row, path in zip(rows, paths, strict=False)] if paths else rows
        return Generated(samples, "\n".join(named), paths[0] if paths else None)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> Trial:
        """Writes what `export_audio` does."""
        sizes = self.config.data.sequence_length, self.config.data.batch_size
        tsa.export.export_audio(model, path, self.codec, *sizes, jit_compile, weight_dtype)
        count = max(1, self.codec.sample_rate // 10)
        inputs = {"samples": [[0] * count], "num_samples": [count]}
        silence = f"silence of {count} samples"
        return Trial("score", inputs, lambda found: f"{silence} has {found['bits_per_byte']:.4f} bits per byte")


def _paths(path, num_samples):
    """Returns a file for each sample, none without a path."""
    if path is None:
        return []
    if num_samples == 1:
        return [path]
    return [path.with_name(f"{path.stem}_{number}{path.suffix}") for number in range(num_samples)]


def _ids_of(codec, prompt):
    """Returns the ids of the content of a WAV file, int32 (T,), none for None and b""."""
    if not prompt:
        return np.zeros(0, np.int32)
    found = decode_wav(prompt)
    if isinstance(found, str):
        raise ValueError(f"`prompt` must be a WAV file. Received: one {found}.")
    if found.sample_rate != codec.sample_rate:
        raise ValueError(
            f"`prompt` must have {codec.sample_rate} samples per second, as the recordings of the run. "
            f"Received: {found.sample_rate}."
        )
    return codec.encode(mix_down(found.samples))


def write_wav(path: str | os.PathLike, samples: np.ndarray, sample_rate: int) -> None:
    """Writes samples, int16 (T,), as a WAV file of 16-bit PCM, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(encode_wav(samples, sample_rate))


def as_picture(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Returns the waveform of samples, int16 (T,), over their spectrogram, uint8 (height, width, 4)."""
    seconds = np.arange(len(samples)) / sample_rate
    size = max(SHORTEST, sample_rate // 50)  # 20 milliseconds

    def draw_waveform(axes):
        axes.plot(seconds, samples / 32768, linewidth=0.5)
        axes.set(xlim=(0, len(samples) / sample_rate), ylim=(-1, 1), ylabel="sample")

    def draw_spectrogram(axes):
        padded = np.pad(samples.astype(np.float64), (0, max(0, 2 * size - len(samples))))
        # Noise of one unit of 16 bits: silence has the logarithm minus infinity.
        dither = np.random.default_rng(0).uniform(-1, 1, len(padded))
        axes.specgram(padded + dither, NFFT=size, Fs=sample_rate, noverlap=size // 2)
        axes.set(xlabel="seconds", ylabel="Hz")

    return np.concatenate([illustrations.draw_figure(SIZE, draw) for draw in (draw_waveform, draw_spectrogram)])
