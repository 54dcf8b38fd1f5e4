"""Decoding strategies: `Sampling`, `BeamSearch`, `Speculative`, and custom samplers.

The settings of a strategy have two parts. One program is compiled per `kind`. The `values` are inputs of the program,
so changing them needs no new compilation.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation.samplers import (
    block_ngrams,
    check_settings,
    greedy,
    penalize_repetition,
    restrict,
    sample,
)
from tf_sparse_attention.types import Tensor

CUTS = {"top_k": "int32", "top_p": "float32", "min_p": "float32"}
LONGEST_NGRAM = 32  # each of the n tokens costs one pass over the whole sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Repetition settings shared by `Sampling` and `BeamSearch`.

    Args:
        repetition_penalty: values above 1 make recent token ids less likely, see
            `tf_sparse_attention.generation.penalize_repetition`. Default: 1.
        repetition_window: number of recent tokens that the penalty applies to. None: all. Default: 64.
        no_repeat_ngram: n, at most 32, forbids repeated n-grams; each new token costs n passes over the whole sequence.
            See `tf_sparse_attention.generation.block_ngrams`. Default: None.

    Raises:
        ValueError: If a setting is out of range.
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
        """Hashable settings that determine the program: all settings except the numbers in `values`."""
        return type(self), self._penalizes, self.repetition_window, self.no_repeat_ngram

    @property
    def values(self) -> dict[str, Tensor]:
        """Settings that are inputs of the program, a dictionary of scalar arrays."""
        return {"repetition_penalty": np.array(self.repetition_penalty, "float32")}

    def adjust(self, values: dict[str, Tensor]) -> Callable | None:
        """Return the `adjust` function of `generate`, (logits, inputs, index) -> logits, or None without penalties.

        Args:
            values: the property `values`, or a dictionary of scalar tensors with the same keys.
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
    """Sampling of each token from the model's distribution; see `tf_sparse_attention.generation.sample`.

    Args:
        temperature: above 1 flattens the distribution, below 1 sharpens it; 0 takes the most likely token. Default: 1.
        top_k: samples from the k most likely ids. None: all. Default: None.
        top_p: samples from the nucleus: the most likely ids with this total probability. None: all. Default: None.
        min_p: samples from ids with at least this fraction of the highest probability. None: all. Default: None.
        **config: see `DecodingConfig`.

    Raises:
        ValueError: If a setting is out of range.

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
        """Return the `sampler` function of `generate`, (logits, keys) -> ids.

        Args:
            values: the property `values`, or a dictionary of scalar tensors with the same keys.
        """
        if self.temperature == 0:
            return greedy
        return functools.partial(sample, **{name: values[name] for name in ("temperature", *self._cuts)})

    def probabilities(self, logits: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Return the distribution that `sampler` samples from, float32 (B, V). The temperature must not be 0.

        Args:
            logits: float (B, V).
            values: as for `sampler`.
        """
        return ops.softmax(restrict(logits, **{name: values[name] for name in ("temperature", *self._cuts)}), axis=-1)

    @property
    def _cuts(self):
        return [name for name in CUTS if getattr(self, name) is not None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(DecodingConfig):
    """Beam search for the most likely sequence; see `tf_sparse_attention.generation.beam_search`.

    Args:
        num_beams: K, number of candidates per prompt. Default: 4.
        length_penalty: exponent of the length that divides the log-probability, at least 0. 0 prefers short sequences;
            1 gives the mean log-probability per token. Default: 1.
        **config: see `DecodingConfig`.

    Raises:
        ValueError: If a setting is out of range.

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
    """Custom sampling function with the properties and methods of `Sampling`.

    Args:
        function: function (logits, keys) -> ids, with float (B, V), uint32 (B, 2) and int (B,).
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


@dataclasses.dataclass(frozen=True)
class Speculative:
    """Speculative decoding (Leviathan et al. 2023, algorithm 1).

    The draft model proposes `num_draft_tokens` tokens. The target model computes their probabilities in one pass, and
    accepts each with probability min(1, p / q), where p is the probability of the target model and q of the draft
    model. After a rejection, the next token is sampled from max(p - q, 0). So tokens follow the distribution of the
    target model exactly, for any draft model. With "greedy", a draft is accepted if it is the target's most likely
    token.

    The draft model can be a smaller model with the same vocabulary, or the target model with sparser attention and the
    same weights (self-speculation).

    Args:
        draft: a causal `LanguageModel` with a KV cache, and the vocabulary of the target model.
        num_draft_tokens: number of proposed tokens per pass of the target model. Default 4.
        strategy: "greedy", "random" or a `Sampling` without repetition settings. Default "greedy".

    Raises:
        ValueError: if an argument is invalid.

    Example:
        >>> draft = model  # or a smaller model
        >>> strategy = Speculative(draft, num_draft_tokens=4, strategy="random")
        >>> model.generate("def main():", max_length=300, tokenizer=ByteTokenizer(), strategy=strategy)
    """

    draft: Any
    num_draft_tokens: int = 4
    strategy: str | DecodingConfig = "greedy"

    def __post_init__(self) -> None:
        checks.check_count("num_draft_tokens", self.num_draft_tokens)
        chosen = get_strategy(self.strategy)
        if not isinstance(chosen, Sampling) or chosen.adjust(chosen.values) is not None:
            raise ValueError(
                "`strategy` must be 'greedy', 'random' or a `Sampling` without repetition settings. "
                f"Received: strategy={self.strategy!r}."
            )
        object.__setattr__(self, "strategy", chosen)
        if not all(hasattr(self.draft, name) for name in ("extend", "rewind", "init_cache", "generator")):
            raise ValueError(f"`draft` must be a `LanguageModel`. Received: draft={self.draft!r}.")
        if self.draft.cache_unsupported_reason is not None:
            raise ValueError(
                "`draft` must be a model that decodes with a cache, such as one with local attention. Received: "
                f"{self.draft.name}: {self.draft.cache_unsupported_reason}."
            )

    @property
    def kind(self) -> tuple:
        """Hashable settings that determine the program."""
        return Speculative, self.num_draft_tokens, *self.strategy.kind  # type: ignore[union-attr]  # a `Sampling`

    @property
    def values(self) -> dict[str, Tensor]:
        """Settings that are inputs of the program, a dictionary of scalar arrays."""
        return self.strategy.values  # type: ignore[union-attr]


Strategy: TypeAlias = str | DecodingConfig | Speculative | Callable  # what `get_strategy` accepts

NAMED = {"random": Sampling(), "greedy": Sampling(temperature=0.0), "beam": BeamSearch()}


def get_strategy(strategy: Strategy) -> Any:
    """Return the strategy for a name ("random", "greedy" or "beam") or a sampling function; strategies are unchanged.

    Raises:
        ValueError: If `strategy` is anything else.
    """
    if isinstance(strategy, str) and strategy in NAMED:
        return NAMED[strategy]
    if isinstance(strategy, (DecodingConfig, Speculative)):
        return strategy
    if callable(strategy) and not isinstance(strategy, type):
        return CustomSampler(strategy)
    raise ValueError(
        f"`strategy` must be one of {', '.join(NAMED)}, a `Sampling`, a `BeamSearch`, a `Speculative` or a function "
        f"(logits, keys) -> ids. Received: strategy={strategy!r}."
    )
