"""Audio as byte sequences: a language model of mu-law samples, one byte each."""

import functools
import os
import pathlib
from typing import Any, ClassVar

import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.data.sources.media_files import decode_wav, encode_wav, mix_down
from tf_sparse_attention.trainers.shared import components, illustrations, sampling
from tf_sparse_attention.trainers.tasks.byte_task import ByteTask, ByteValidation
from tf_sparse_attention.trainers.tasks.task import Examples, ExportTest, Generated, Names, Request, Show

SAMPLES = "samples.wav"
MIN_FFT_SIZE = 32  # samples
SIZE = (8, 2)  # inches, of the waveform and of the spectrogram


class Validation(ByteValidation):
    """Scores of recordings. `data` is their token store."""

    metric, items = "bits_per_byte", "recordings"

    def batches(self) -> dict[str, tsa.data.Batches]:
        data = self.task.config.data
        sizes = data.batch_size, data.sequence_length, data.use_packing
        return {"": tsa.data.evaluation_batches(self.data, *sizes, max_windows=self.limit, overlap=data.overlap)}

    def num_items(self) -> int:
        return self.data.num_documents

    def examples(self) -> Examples:
        """Return the first recording and a sample, as pictures and sound, and cluster statistics."""
        task, codec = self.task, self.task.codec
        ids = self.data.document(0)[:-1]  # without the padding at the end
        sounds = {"recording": codec.decode(ids)}
        if self.can_draw():
            (sample,) = task.generate(self.model, Request()).samples
            sounds["sample"] = codec.decode(sample["token_ids"])
        clusters, rate = self.clusters.examples(ids[: task.config.data.sequence_length]), codec.sample_rate
        shown = sounds if illustrations.has_matplotlib() else {}
        pictures = {name: draw_audio(samples, rate) for name, samples in shown.items()}
        with_rates = {name: (samples, rate) for name, samples in sounds.items()}
        return clusters._replace(pictures=pictures | clusters.pictures, sounds=with_rates)


class Task(ByteTask):
    """Language modeling of audio; see `trainers.tasks.task.Task`."""

    codec_class = tsa.data.AudioCodec
    settings: ClassVar[Names] = {
        "data": ("sample_rate", "use_packing", "overlap"),
        "model": components.LANGUAGE_MODEL,
        "train": ("evaluation_windows",),
        "generate": ("length", *components.SAMPLING),
    }
    expected_path = "a folder of WAV files or a file NAME.npz"
    validation = Validation

    @functools.cached_property
    def source(self) -> tsa.data.AudioSource:
        return tsa.data.open_audio(**components.data_settings(self.config, "sample_rate"))

    def make_codec(self) -> tsa.data.AudioCodec:
        return tsa.data.AudioCodec(self.source.sample_rate)

    def open_split(self, split: str) -> tsa.data.TokenStore:
        """Open the recordings of a split as ids on disk."""
        if self.source.sample_rate != self.codec.sample_rate:
            raise ValueError(
                f"`config.data` must have recordings of {self.codec.sample_rate} samples per second, as the model "
                f"requires. Received: {self.source.name} with {self.source.sample_rate}."
            )
        return tsa.data.open_token_store(self.source, self.codec, split)

    def training_batches(self) -> tsa.data.Batches:
        source, store = self.source, self.open_split(self.config.data.train_split)
        seconds = store.num_bytes / self.codec.sample_rate
        logging.info("%s: %d training recordings, %.0f seconds", source.name, store.num_documents, seconds)
        return components.make_batches(self.config, store)

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Draw new audio, or continue a WAV file, and write WAV files.

        `request.prompt` is the content of a WAV file with the model's sample rate; `length` is in audio samples.
        Several samples are written to NAME_0.wav, NAME_1.wav, ... The result has samples as of `ByteTask.draw`, and the
        path of the first file.
        """
        path = sampling.output_path(request.path, SAMPLES)
        self.check_request(request._replace(path=path), ("complete",), ".wav", same_prompt=True)
        prompt = _encode_wav_file(self.codec, request.prompt)
        length = self.config.generate.length if request.length is None else request.length
        checks.check_count("length", length)
        paths = [] if path is None else [path]
        if path is not None and request.num_samples > 1:
            paths = [path.with_name(f"{path.stem}_{number}{path.suffix}") for number in range(request.num_samples)]

        def write(samples):
            for path, sample in zip(paths, samples, strict=False):  # fewer samples after an interruption
                write_wav(path, self.codec.decode(sample["token_ids"]), self.codec.sample_rate)

        samples = self.draw(model, request, lambda indices: [prompt] * len(indices), len(prompt) + length, write, show)
        rows = self.describe_samples(samples)
        if paths:
            rows = [f"{row}, {path}" for row, path in zip(rows, paths, strict=False)]
        return Generated(samples, "\n".join(rows), paths[0] if paths else None)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> ExportTest:
        sizes = self.config.data.sequence_length, self.config.data.batch_size
        tsa.export.export_audio(model, path, self.codec, *sizes, jit_compile, weight_dtype)
        count = max(1, self.codec.sample_rate // 10)
        inputs = {"samples": [[0] * count], "num_samples": [count]}
        silence = f"silence of {count} samples"
        return ExportTest("score", inputs, lambda scores: f"{silence} has {scores['bits_per_byte']:.4f} bits per byte")


def _encode_wav_file(codec, content):
    """Return the ids of a WAV file, int32 (T,). Empty content has no ids."""
    if not content:
        return np.zeros(0, np.int32)
    audio = decode_wav(content)
    if isinstance(audio, str):
        raise ValueError(f"`prompt` must be a WAV file of 16-bit PCM. Received: a file {audio}.")
    if audio.sample_rate != codec.sample_rate:
        raise ValueError(
            f"`prompt` must have {codec.sample_rate} samples per second, like the recordings of the run. "
            f"Received: {audio.sample_rate}."
        )
    return codec.encode(mix_down(audio.samples))


def write_wav(path: str | os.PathLike, samples: np.ndarray, sample_rate: int) -> None:
    """Write samples, int16 (T,), to a WAV file with 16-bit PCM, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(encode_wav(samples, sample_rate))


def draw_audio(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Draw the waveform of samples, int16 (T,), above their spectrogram, uint8 (height, width, 4)."""
    seconds = np.arange(len(samples)) / sample_rate
    size = max(MIN_FFT_SIZE, sample_rate // 50)  # 20 milliseconds

    def draw_waveform(axes):
        axes.plot(seconds, samples / 32768, linewidth=0.5)
        axes.set(xlim=(0, len(samples) / sample_rate), ylim=(-1, 1), ylabel="sample")

    def draw_spectrogram(axes):
        padded = np.pad(samples.astype(np.float64), (0, max(0, 2 * size - len(samples))))
        # Dither of one 16-bit unit, because the logarithm of silence is minus infinity.
        dither = np.random.default_rng(0).uniform(-1, 1, len(padded))
        axes.specgram(padded + dither, NFFT=size, Fs=sample_rate, noverlap=size // 2)
        axes.set(xlabel="seconds", ylabel="Hz")

    return np.concatenate([illustrations.draw_figure(SIZE, draw) for draw in (draw_waveform, draw_spectrogram)])
