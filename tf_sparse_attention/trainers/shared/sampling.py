"""Generates samples: the body of `tsa-generate`."""

import json
import os
import pathlib
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.trainers.tasks.task import Generated, Request

SAMPLES = "samples.jsonl"
BATCH_SIZE = 8


def generate(
    source: Any,
    prompt: bytes | None = None,
    num_samples: int = 1,
    length: int | None = None,
    seed: int = 0,
    path: str | os.PathLike | None = None,
    show: Callable[[list[dict[str, Any]]], None] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Continues a prompt and writes the samples, one JSON object a line.

    Sample i uses the seed `seed + i`, so that each can be reproduced by itself. After an interruption (Ctrl-C,
    and what `signals.InterruptOnSignal` makes of others) the samples so far are returned.

    Args:
        source: sample source, see `trainers.shared.sample_sources`.
        prompt: `bytes`, UTF-8 or not; empty: a document from its beginning. None: the default of
            the source, as below.
        num_samples: number of samples.
        length: maximum number of tokens to add; a sample also ends at the end of the document.
        seed: integer.
        path: file to write after every batch of samples; an existing one is replaced. None: none.
        show: function of all samples so far, called whenever they grow.
        **settings: arguments of `tf_sparse_attention.generation.Sampling`; with `num_beams`, of `BeamSearch`.

    Returns:
        List of dictionaries: "prompt", "text" (prompt and continuation, with U+FFFD for invalid UTF-8), "num_tokens"
        (that were added), "log_prob" (of these together), "finished" (whether the document ended), "interrupted",
        "seed" and the settings.

    Raises:
        ValueError: If a setting is out of range.
        KeyboardInterrupt: If it is interrupted before the first token.
    """
    defaults = dict(source.defaults)
    own_prompt, own_length = defaults.pop("prompt"), defaults.pop("length")
    prompt = own_prompt.encode("utf-8") if prompt is None else prompt
    length = own_length if length is None else length
    settings = {name: value for name, value in settings.items() if value is not None}
    settings = settings if "num_beams" in settings else defaults | settings
    checks.check_count("num_samples", num_samples)
    if "num_beams" in settings and num_samples > 1:
        raise ValueError(f"`num_samples` must be 1 for beams, which find one text. Received: {num_samples}.")
    checks.check_count("length", length)
    check_path(path)

    def snapshots(numbers):
        return source.snapshots(prompt, [seed + number for number in numbers], length, settings)

    return draw(snapshots, num_samples, lambda samples: write_samples(samples, path), show)


def draw(
    snapshots: Callable[[range], Iterable[list[dict[str, Any]]]],
    num_samples: int,
    write: Callable[[list[dict[str, Any]]], None],
    show: Callable[[list[dict[str, Any]]], None] | None = None,
) -> list[dict[str, Any]]:
    """Draws samples of any kind, some at a time, and writes those so far after each time, and after Ctrl-C.

    Args:
        snapshots: function of the numbers of samples, a range that may go beyond the last, since all are as long:
            yields these samples while they grow.
        num_samples: number of samples.
        write: function of the samples so far.
        show: as for `generate`.

    Returns:
        The samples, each with "interrupted".

    Raises:
        KeyboardInterrupt: If it is interrupted before there is anything.
    """
    samples: list[dict[str, Any]] = []
    current: list[dict[str, Any]] = []
    size = min(BATCH_SIZE, num_samples)
    try:
        for begin in range(0, num_samples, size):
            # A smaller last batch would be compiled again. The surplus rows are generated and dropped.
            for batch in snapshots(range(begin, begin + size)):
                current = [{**sample, "interrupted": False} for sample in batch[: num_samples - begin]]
                if show is not None:
                    show([*samples, *current])
            samples, current = samples + current, []
            write(samples)
    except KeyboardInterrupt:
        samples += [{**sample, "interrupted": True} for sample in current]
        if not samples:
            raise
        write(samples)
    return samples


def generate_text(
    source: Any, request: Request, show: Callable[[list[dict[str, Any]]], None] | None = None
) -> Generated:
    """Returns what `generate` does, as the program wants it: one sample is shown while it grows, several are not.

    Raises:
        ValueError: As `generate`, and for images to complete.
    """
    if request.complete is not None:
        raise ValueError(f"`complete` must be unset for text: it is for images. Received: {request.complete}.")
    path = output_path(request.path, SAMPLES)
    samples = generate(
        source,
        request.prompt,
        request.num_samples,
        request.length,
        request.seed,
        path,
        show,
        **request.settings,
    )
    is_shown = len(samples) == request.num_samples == 1
    return Generated(samples, "" if is_shown else as_text(samples), path)


def output_path(path: str | os.PathLike | None, name: str) -> pathlib.Path | None:
    """Returns the file to write: the path, in a folder the file of this name, or None for None.

    Raises:
        ValueError: Unless it lies in a folder that exists.
    """
    if path is None:
        return None
    file = pathlib.Path(path) / name if pathlib.Path(path).is_dir() else pathlib.Path(path)
    check_path(file)
    return file


def check_path(path: str | os.PathLike | None) -> None:
    """Raises a `ValueError` unless a file can be written there; None is fine."""
    if path is not None and (pathlib.Path(path).is_dir() or not pathlib.Path(path).absolute().parent.is_dir()):
        raise ValueError(f"`output` must be a file in an existing folder. Received: {path}.")


def write_samples(samples: list[dict[str, Any]], path: str | os.PathLike | None) -> None:
    """Writes samples as JSON lines, atomically; None: nowhere."""
    if path is None:
        return
    with atomic_file(path) as temporary:
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
        temporary.write_text("".join(lines), encoding="utf-8")


def as_text(samples: list[dict[str, Any]]) -> str:
    """Returns samples as readable text, each under a heading if there are several.

    Control characters become U+FFFD.
    """
    if len(samples) == 1:
        return printable(samples[0]["text"])
    return "\n".join(f"=== seed {sample['seed']}\n{printable(sample['text'])}" for sample in samples)


def printable(text: str) -> str:
    """Returns text with control characters replaced by U+FFFD."""
    return "".join("\ufffd" if _is_control(character) else character for character in text)


def _is_control(character):
    return unicodedata.category(character) == "Cc" and character not in "\n\t"
