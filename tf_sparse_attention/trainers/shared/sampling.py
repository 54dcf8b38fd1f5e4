"""Generation of samples, for `tsa-generate`."""

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
    """Continue a prompt, and write the samples as JSON lines.

    Sample i has seed `seed` + i, so that each sample is reproducible separately. After an interruption (Ctrl-C, or
    another signal with `signals.InterruptOnSignal`), the samples so far are returned.

    Args:
        source: sample source, see `trainers.shared.sample_sources`.
        prompt: `bytes`; invalid UTF-8 is allowed. Empty: start of a document. None: the default of the source.
        num_samples: number of samples.
        length: maximum number of tokens to add. None: the default of the source.
        seed: integer.
        path: output file, written after every batch of samples. None: no file.
        show: function of all samples so far, called whenever they grow.
        **settings: arguments of `tf_sparse_attention.generation.Sampling`, or of `BeamSearch` with `num_beams`.

    Returns:
        List of dictionaries with "prompt", "text" (prompt and continuation, with U+FFFD for invalid UTF-8),
        "num_tokens" and "log_prob" (number and log-probability of the new tokens), "finished" (whether the document
        ended), "interrupted", "seed" and the settings.

    Raises:
        ValueError: If a setting is out of range.
        KeyboardInterrupt: If interrupted before the first token.
    """
    defaults = dict(source.defaults)
    default_prompt, default_length = defaults.pop("prompt"), defaults.pop("length")
    prompt = default_prompt.encode("utf-8") if prompt is None else prompt
    length = default_length if length is None else length
    settings = {name: value for name, value in settings.items() if value is not None}
    settings = settings if "num_beams" in settings else defaults | settings
    checks.check_count("num_samples", num_samples)
    if "num_beams" in settings and num_samples > 1:
        raise ValueError(f"`num_samples` must be 1 for beam search. Received: {num_samples}.")
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
    """Draw samples of any kind in batches. Write all samples so far after each batch and after Ctrl-C.

    Args:
        snapshots: function from a range of sample numbers to an iterator over these samples as they grow. All ranges
            have the same length; the last range can exceed `num_samples`.
        num_samples: number of samples.
        write: function of the samples so far.
        show: as in `generate`.

    Returns:
        The samples, each with "interrupted".

    Raises:
        KeyboardInterrupt: If interrupted before the first snapshot.
    """
    samples: list[dict[str, Any]] = []
    current: list[dict[str, Any]] = []
    size = min(BATCH_SIZE, num_samples)
    try:
        for begin in range(0, num_samples, size):
            # A smaller last batch would be compiled again. Surplus samples are dropped.
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
    """Generate text for `tsa-generate`. The returned text is empty for a single sample, which `show` prints.

    Raises:
        ValueError: If `request.complete` is set; see also `generate`.
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
    is_shown = show is not None and len(samples) == request.num_samples == 1
    return Generated(samples, "" if is_shown else as_text(samples), path)


def output_path(path: str | os.PathLike | None, name: str) -> pathlib.Path | None:
    """Return the output file: the path, or for a folder the file `name` in it. None: None.

    Raises:
        ValueError: If the folder does not exist.
    """
    if path is None:
        return None
    file = pathlib.Path(path) / name if pathlib.Path(path).is_dir() else pathlib.Path(path)
    check_path(file)
    return file


def check_path(path: str | os.PathLike | None) -> None:
    """Raise a `ValueError` unless the path is None or a file in an existing folder."""
    if path is not None and (pathlib.Path(path).is_dir() or not pathlib.Path(path).absolute().parent.is_dir()):
        raise ValueError(f"`output` must be a file in an existing folder. Received: {path}.")


def write_samples(samples: list[dict[str, Any]], path: str | os.PathLike | None) -> None:
    """Write samples as JSON lines, atomically. None: write no file."""
    if path is None:
        return
    with atomic_file(path) as temporary:
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
        temporary.write_text("".join(lines), encoding="utf-8")


def as_text(samples: list[dict[str, Any]]) -> str:
    """Format samples as text, with a heading per sample if there are several. Replace control characters."""
    if len(samples) == 1:
        return printable(samples[0]["text"])
    return "\n".join(f"=== seed {sample['seed']}\n{printable(sample['text'])}" for sample in samples)


def printable(text: str) -> str:
    """Replace control characters in a text by U+FFFD."""
    return "".join("\ufffd" if _is_control(character) else character for character in text)


def _is_control(character):
    return unicodedata.category(character) == "Cc" and character not in "\n\t"
