"""Decoding strategies: `Sampling`, `BeamSearch`, and functions of the user.

The settings of a strategy are in two parts. A program is compiled for each `kind`; the `values` are its inputs, so that
other values need no new program.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.generation.repetition import block_ngrams, penalize_repetition
from tf_sparse_attention.generation.samplers import check_settings, greedy, sample
from tf_sparse_attention.types import Tensor

CUTS = {"top_k": "int32", "top_p": "float32", "min_p": "float32"}
LONGEST_NGRAM = 32  # a comparison of the whole text for each of its tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Settings that `Sampling` and `BeamSearch` share: penalties of repetition.

    Args:
        repetition_penalty: above 1 makes ids of the last tokens less likely, see
            `tf_sparse_attention.generation.penalize_repetition`. Default 1.
        repetition_window: how many of the last tokens the penalty looks at. Default 64. None: all.
        no_repeat_ngram: n, forbids repeated n-grams, at most 32; each token costs n passes over the whole text. See
            `tf_sparse_attention.generation.block_ngrams`. Default None.

    Raises:
        ValueError: for a setting out of range.
    """

    repetition_penalty: float = 1.0
    repetition_window: int | None = 64
    no_repeat_ngram: int | None = None

    def __post_init__(self) -> None:
        checks.check_positive("repetition_penalty", self.repetition_penalty)
        checks.check_optional_count("repetition_window", self.repetition_window)
        checks.check_optional_count("no_repeat_ngram", self.no_repeat_ngram)
        if (self.no_repeat_ngram or 0) > LONGEST_NGRAM:
            raise ValueError(
                f"`no_repeat_ngram` must be at most {LONGEST_NGRAM}. Received: no_repeat_ngram={self.no_repeat_ngram}."
            )

    @property
    def kind(self) -> tuple:
        """What a program depends on, hashable: all settings but the numbers of `values`."""
        return type(self), self._penalizes, self.repetition_window, self.no_repeat_ngram

    @property
    def values(self) -> dict[str, Tensor]:
        """The settings that are numbers in a program, a dictionary of scalar arrays."""
        return {"repetition_penalty": np.array(self.repetition_penalty, "float32")}

    def adjust(self, values: dict[str, Tensor]) -> Callable | None:
        """Return the function (logits, inputs, index) -> logits of `generate`, None where nothing changes.

        Args:
            values: `values`, or scalar tensors instead.
        """
        parts = []
        if self._penalizes:
            penalty, window = values["repetition_penalty"], self.repetition_window
            parts.append(functools.partial(penalize_repetition, penalty=penalty, window=window))
        if self.no_repeat_ngram is not None:
            parts.append(functools.partial(block_ngrams, size=self.no_repeat_ngram))
        if not parts:
            return None
        return lambda logits, inputs, index: functools.reduce(lambda x, part: part(x, inputs, index), parts, logits)

    @property
    def _penalizes(self):
        return self.repetition_penalty != 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(DecodingConfig):
    """Samples each token from the model's distribution; see `tf_sparse_attention.generation.sample`.

    Args:
        temperature: above 1 flattens, below 1 sharpens; 0 takes the most likely token. Default 1.
        top_k: draws from the k best ids. Default None: all.
        top_p: draws from the nucleus, the best ids that have this probability together. Default None: all.
        min_p: draws from ids of at least this share of the probability of the best one. Default None: all.
        **config: see `DecodingConfig`.

    Raises:
        ValueError: for a setting out of range.

    Example:
        >>> Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_optional_count("top_k", self.top_k)
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            if value is not None or name == "temperature":
                checks.check_not_negative(name, value)
        check_settings(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def kind(self) -> tuple:
        return *super().kind, self.temperature == 0, *self._cuts

    @property
    def values(self) -> dict[str, Tensor]:
        numbers = {"temperature": np.array(self.temperature, "float32")}
        numbers |= {name: np.array(getattr(self, name), CUTS[name]) for name in self._cuts}
        return super().values | numbers

    def sampler(self, values: dict[str, Tensor]) -> Callable:
        """Return the function (logits, keys) -> ids of `generate`.

        Args:
            values: `values`, or scalar tensors instead.
        """
        if self.temperature == 0:
            return greedy
        return functools.partial(sample, **{name: values[name] for name in ("temperature", *self._cuts)})

    @property
    def _cuts(self):
        return [name for name in CUTS if getattr(self, name) is not None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(DecodingConfig):
    """Searches for the likeliest text with a few candidates; see `tf_sparse_attention.generation.beam_search`.

    Args:
        num_beams: K, candidates of each prompt. Default 4.
        length_penalty: from 0, which prefers short texts, to 1, the mean log-probability of a token, and beyond.
            Default 1.
        **config: see `DecodingConfig`.

    Raises:
        ValueError: for a setting out of range.

    Example:
        >>> BeamSearch(num_beams=8, no_repeat_ngram=3)
    """

    num_beams: int = 4
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_count("num_beams", self.num_beams)
        checks.check_not_negative("length_penalty", self.length_penalty)

    @property
    def kind(self) -> tuple:
        return *super().kind, self.num_beams

    @property
    def values(self) -> dict[str, Tensor]:
        return super().values | {"length_penalty": np.array(self.length_penalty, "float32")}


@dataclasses.dataclass(frozen=True)
class CustomSampler:
    """A sampling function of the user, with the properties and methods of `Sampling`.

    Args:
        function: (logits (B, V), keys (B, 2)) -> ids (B,).
    """

    function: Callable

    @property
    def kind(self) -> tuple:
        return (self.function,)

    @property
    def values(self) -> dict[str, Tensor]:
        return {}

    def sampler(self, values: dict[str, Tensor]) -> Callable:
        return self.function

    def adjust(self, values: dict[str, Tensor]) -> Callable | None:
        return None


NAMED = {"random": Sampling(), "greedy": Sampling(temperature=0.0), "beam": BeamSearch()}


def get_strategy(strategy: str | DecodingConfig | Callable) -> DecodingConfig | CustomSampler:
    """Return the settings of a name, "random", "greedy" or "beam", or of a function; settings as they are.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(strategy, str) and strategy in NAMED:
        return NAMED[strategy]
    if isinstance(strategy, DecodingConfig):
        return strategy
    if callable(strategy) and not isinstance(strategy, type):
        return CustomSampler(strategy)
    raise ValueError(
        f"`strategy` must be one of {', '.join(NAMED)}, a `Sampling`, a `BeamSearch` or a function (logits, keys) -> "
        f"ids. Received: strategy={strategy!r}."
    )
