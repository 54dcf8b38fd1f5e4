"""Sound that a model draws or continues, as WAV files, and pictures of sound."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention import checks
from tf_sparse_attention.data.sources.wav_file import decode_wav, encode_wav, mix_down
from tf_sparse_attention.trainers.shared import illustrations, sampling
from tf_sparse_attention.trainers.shared.files import atomic_file
from tf_sparse_attention.trainers.tasks import byte_samples
from tf_sparse_attention.trainers.tasks.parts import Generated, Request

SAMPLES = "samples.wav"
FOREIGN = ("complete",)  # of a request
SHORTEST = 32  # samples of a transform in a picture
SIZE = (8, 2)  # inches of each half of a picture


class Player(NamedTuple):
    """What draws sound.

    Attributes:
        model: a `LanguageModel`.
        codec: the `AudioCodec` of its samples.
        defaults: `config.generate` as a dictionary.
    """

    model: Any
    codec: tsa.data.AudioCodec
    defaults: dict[str, Any]


def generate(
    player: Player,
    request: Request,
    show: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Generated:
    """Draws sound from the beginning of a recording, or continues that of a WAV file, and writes WAV files.

    Args:
        player: the `Player`.
        request: its `prompt` is what a WAV file of the model's sample rate has in it, or None; `length` is in samples;
            `path` is NAME.wav, and of several samples the files are NAME_0.wav and so on.
        show: function of all samples so far, called whenever they grow.

    Returns:
        `Generated`: samples are dictionaries with "token_ids", the prompt included, "num_tokens" that were drawn, their
        "log_prob" and "bits_per_byte", "seed" and the settings; the path is that of the first file.

    Raises:
        ValueError: For a request that does not suit sound.
        KeyboardInterrupt: If it is interrupted before the first sample.
    """
    byte_samples.check_request(request, "recordings", FOREIGN, ".wav")
    settings = byte_samples.settings_of(request, player.defaults)
    prompt = _ids_of(player.codec, request.prompt)
    length = player.defaults["length"] if request.length is None else request.length
    checks.check_count("length", length)

    def snapshots(numbers):
        seeds = [request.seed + number for number in numbers]
        return byte_samples.snapshots(
            player.model, [prompt] * len(seeds), len(prompt) + length, seeds, settings, "bits_per_byte"
        )

    paths = _paths(request)

    def write(samples):
        for path, sample in zip(paths, samples, strict=False):  # after an interruption there are less
            write_wav(path, player.codec.decode(sample["token_ids"]), player.codec.sample_rate)

    samples = sampling.draw(snapshots, request.num_samples, write, show)
    rows = [f"seed {sample['seed']}: {sample['bits_per_byte']:.4f} bits per byte" for sample in samples]
    named = [f"{row}, {path}" for row, path in zip(rows, paths, strict=False)] if paths else rows
    return Generated(samples, "\n".join(named), paths[0] if paths else None)


def _paths(request):
    """Returns the files of a request, none if it has no path."""
    if request.path is None:
        return []
    path = pathlib.Path(request.path)
    if request.num_samples == 1:
        return [path]
    return [path.with_name(f"{path.stem}_{number}{path.suffix}") for number in range(request.num_samples)]


def _ids_of(codec, prompt):
    """Returns the ids of what a WAV file has in it, int32 (T,), none for None and b""."""
    if not prompt:
        return np.zeros(0, np.int32)
    found = decode_wav(prompt)
    if isinstance(found, str):
        raise ValueError(f"`prompt` must be a WAV file. Received: one {found}.")
    if found.sample_rate != codec.sample_rate:
        raise ValueError(
            f"`prompt` must have {codec.sample_rate} samples a second, as the recordings of the run. "
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
        # One unit of 16 bits of noise, whose logarithm is 0, in place of the silence, whose is minus infinity.
        dither = np.random.default_rng(0).uniform(-1, 1, len(padded))
        axes.specgram(padded + dither, NFFT=size, Fs=sample_rate, noverlap=size // 2)
        axes.set(xlabel="seconds", ylabel="Hz")

    return np.concatenate([illustrations.drawn(SIZE, draw) for draw in (draw_waveform, draw_spectrogram)])
