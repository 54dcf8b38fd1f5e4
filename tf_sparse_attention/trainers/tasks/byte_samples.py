"""Draws sequences of bytes that are no text: images and sound."""

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention import checks
from tf_sparse_attention.trainers.shared import sample_sources, sampling
from tf_sparse_attention.trainers.tasks.parts import Request

CHUNK = 256  # bytes between two snapshots


def check_request(request: Request, items: str, foreign: Sequence[str], suffix: str, begin_alike: bool = True) -> None:
    """Raises a `ValueError` for a request that does not suit.

    Args:
        request: the `Request`.
        items: what is drawn.
        foreign: names of what has to be unset.
        suffix: the end of the name of a file.
        begin_alike: whether all samples have one beginning, of which beams find one sample.
    """
    for name in foreign:
        value = getattr(request, name)
        if value is not None:
            # In short: the prompt may be a whole file.
            raise ValueError(f"`{name}` must be unset for {items}. Received: {name}={reprlib.repr(value)}.")
    checks.check_count("num_samples", request.num_samples)
    if begin_alike and "num_beams" in request.settings and request.num_samples > 1:
        raise ValueError(f"`num_samples` must be 1 for beams, which find one sample. Received: {request.num_samples}.")
    if request.path is not None and not str(request.path).endswith(suffix):
        raise ValueError(f"`output` must be a file NAME{suffix} for {items}. Received: {request.path}.")
    sampling.check_path(request.path)


def settings_of(request: Request, defaults: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the strategy of a request; `defaults` is `config.generate` as a dictionary."""
    own = {name: value for name, value in defaults.items() if name not in ("prompt", "length")}
    return request.settings if "num_beams" in request.settings else own | request.settings


def snapshots(
    model: Any,
    prompts: Sequence[np.ndarray],
    length: int,
    seeds: Sequence[int],
    settings: dict[str, Any],
    metric: str,
) -> Iterator[list[dict[str, Any]]]:
    """Yields the samples of some prompts while they grow.

    Args:
        model: a `LanguageModel` of 257 ids.
        prompts: ids, int32 (T,) each.
        length: ids of a sample, prompt included.
        seeds: one for each.
        settings: of `settings_of`.
        metric: name of the bits a byte.

    Yields:
        A dictionary for each: "token_ids", prompt included, "num_tokens" that were drawn, their "log_prob" and, as
        `metric`, bits a byte, "seed" and the settings.
    """
    strategy = sample_sources.make_strategy(settings)
    every = CHUNK if isinstance(strategy, tsa.generation.Sampling) else None
    num_ids = model.backbone.vocabulary_size
    for rows in model.generator.iterate(prompts, length, strategy, seeds, None, num_ids, every):
        yield [
            {
                "token_ids": row.token_ids,
                "num_tokens": len(row.log_probs),
                "log_prob": round(float(row.log_probs.sum()), 3),
                metric: float(-row.log_probs.sum() / np.log(2) / max(len(row.log_probs), 1)),
                "seed": seed,
                **settings,
            }
            for row, seed in zip(rows, seeds, strict=True)
        ]
