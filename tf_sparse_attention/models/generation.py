"""Text generation with a language model: `generate` and `stream`."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.generation.strategies import Strategy
from tf_sparse_attention.models.chat_session import ChatSession
from tf_sparse_attention.models.generator import END_ID, Generator, Row
from tf_sparse_attention.models.prompts import Prompts, iterate_pieces, parse_prompts
from tf_sparse_attention.types import Tensor

CHUNK_SIZE = 64  # tokens per call of the compiled program in `generate`


class Generation:
    """Mixin of `LanguageModel` for text generation.

    Prompts are read in chunks, and each new token costs about as much as one position of a pass. A model that
    cannot decode with a cache (`selection="top_k"`) needs one pass per token, and logs a warning.
    """

    _generator = None

    @property
    def generator(self) -> Generator:
        """The `Generator` of this model, with its compiled programs."""
        if self._generator is None:
            self._generator = Generator(self)
        return self._generator

    def generate(
        self,
        prompts: Any,
        max_length: int,
        strategy: Strategy | None = None,
        tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        padding_mask: Tensor | None = None,
        return_log_probs: bool = False,
        cache: ChatSession | None = None,
    ) -> Any:
        """Generate continuations of prompts.

        Args:
            prompts: `str`, `bytes`, or a sequence of ids; or a list, array or tensor of these: texts (B,) or ids
                (B, T). Start id 0 is added. A start id in a prompt is removed from the result. An empty prompt starts a
                document.
            max_length: maximum number of tokens in a row, including the prompt.
            strategy: "random" (samples from the model's distribution), "greedy", "beam", a
                `tf_sparse_attention.generation.Sampling`, `BeamSearch` or `Speculative`, or a function (logits (B, V),
                keys) -> ids (B,), such as `tf_sparse_attention.generation.sample`. Pass the same function object in
                every call: each new function compiles a new program. Default None: the strategy of the session with
                `cache`, otherwise "random".
            tokenizer: tokenizer of the training data, required for prompts of text. Only its ids are sampled, and the
                results are text. Default None: the results are ids.
            seed: an integer: row i has the same result in every batch size. A sequence of one integer per row: the
                order of rows has no effect. Default 0.
            stop_token_ids: an id, or several, after which a row stops. Default 1, the end of a document. None: only
                `max_length` stops a row.
            padding_mask: for an array of ids: bool (B, T), False for padding, on the left or the right.
            return_log_probs: whether to also return the log-probability of each new token, including a stop id.
                Probabilities are normalized over all ids of the `tokenizer`, or of the model without a tokenizer,
                except padding, before temperature, `top_k`, `top_p` and `min_p`. Default False.
            cache: a `ChatSession` of this model, continued by one prompt. Prompt and continuation become part of the
                session. `max_length` does not count earlier tokens of the session. `seed` and `stop_token_ids` of the
                session apply, so these arguments must have their defaults. Default None: a new sequence.

        Returns:
            The result for one prompt, or a list of results. A result is `str` (an incomplete last character becomes
            U+FFFD) or int32 (T,), including a stop id. With `return_log_probs`: a pair of results and float32 arrays.

        Raises:
            ValueError: if a setting is invalid, or a prompt has ids outside the vocabulary, is longer than
                `max_length`, or is not UTF-8 although the tokenizer requires it.

        Example:
            >>> model.generate("def main():", max_length=300, tokenizer=ByteTokenizer())
            >>> strategy = tsa.generation.Sampling(temperature=0.8, top_p=0.95)
            >>> model.generate([[74, 107], []], max_length=100, strategy=strategy, seed=1)
        """
        checks.check_switch("return_log_probs", return_log_probs)
        parsed = parse_prompts(prompts, self.backbone.vocabulary_size, tokenizer, padding_mask)
        if cache is not None:
            if return_log_probs:
                raise ValueError("`return_log_probs` must be False with `cache`. Received: True.")
            _check_defaults(seed, stop_token_ids)
            ids = np.concatenate(
                [np.zeros(0, "int32"), *self._continue(cache, parsed, max_length, strategy, CHUNK_SIZE)]
            )
            return parsed.unwrap([ids if tokenizer is None else tokenizer.detokenize(ids)])
        num_ids = None if tokenizer is None else tokenizer.vocabulary_size
        settings = "random" if strategy is None else strategy, seed, stop_token_ids, num_ids
        rows = self.generator.generate(parsed.rows, max_length, *settings)
        return format_results(parsed, rows, tokenizer, return_log_probs)

    def stream(
        self,
        prompt: Any,
        max_length: int | None,
        strategy: Strategy | None = None,
        tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        chunk_size: int = 1,
        positions_in_cache: bool = False,
        cache: ChatSession | None = None,
    ) -> Iterator[Any]:
        """Iterate over pieces of the continuation of one prompt during generation.

        The concatenated pieces equal the result of `generate`, including the prompt. Pieces of text never split a UTF-8
        character, or a word of a subword tokenizer.

        Args:
            prompt: `str`, `bytes` or a sequence of ids.
            max_length: as for `generate`. None: generate until a stop id, with constant memory. This requires caches of
                constant size (see `init_cache`), prompts of ids without a tokenizer, and no `repetition_penalty` or
                `no_repeat_ngram`.
            tokenizer, seed, stop_token_ids, cache: as for `generate`. `tokenizer` must be None with `cache`.
            strategy: as for `generate`, without beam search.
            chunk_size: tokens per piece; larger pieces cost less. Default 1.
            positions_in_cache: if `max_length` is None: whether rotary positions are positions in the cache, so that
                distances stay within the training length; see `init_cache`. Default False.

        Yields:
            Nonempty pieces: `str` with a tokenizer, otherwise int32 arrays.

        Raises:
            ValueError: as for `generate`.

        Example:
            >>> for piece in model.stream("def main():", max_length=300, tokenizer=ByteTokenizer()):
            ...     print(piece, end="", flush=True)
        """
        checks.check_count("chunk_size", chunk_size)
        parsed = parse_prompts(prompt, self.backbone.vocabulary_size, tokenizer)
        if len(parsed.rows) > 1:
            raise ValueError(f"`prompt` must be one prompt. Received: {len(parsed.rows)}.")
        if max_length is None or cache is not None:
            if tokenizer is not None:
                raise ValueError(
                    "`tokenizer` must be None if `max_length` is None or `cache` is given: tokenize the prompt and "
                    "detokenize the results yourself, or call `ChatSession.generate`. Received: a tokenizer."
                )
            if cache is None:
                options: Any = seed, stop_token_ids, positions_in_cache
                cache = ChatSession(self, None, "random" if strategy is None else strategy, None, *options)
            else:
                _check_defaults(seed, stop_token_ids, positions_in_cache)
            return self._continue(cache, parsed, max_length, strategy, chunk_size)
        checks.check_switch("positions_in_cache", positions_in_cache)
        if positions_in_cache:
            raise ValueError(
                "`positions_in_cache` must be False unless `max_length` is None. Received: positions_in_cache=True, "
                f"max_length={max_length}."
            )
        num_ids = None if tokenizer is None else tokenizer.vocabulary_size
        settings = "random" if strategy is None else strategy, seed, stop_token_ids, num_ids, chunk_size
        row_lists = self.generator.iterate(parsed.rows, max_length, *settings)
        return iterate_pieces((row.token_ids for (row,) in row_lists), tokenizer)

    def _continue(
        self, session: ChatSession, parsed: Prompts, max_length: int | None, strategy: Any, chunk_size: int
    ) -> Iterator[Tensor]:
        """Iterate over the ids of a prompt, unless it is empty, and of its continuation in a session."""
        if not isinstance(session, ChatSession) or session.model is not self:
            raise ValueError(f"`cache` must be a `ChatSession` of this model. Received: cache={session!r}.")
        if len(parsed.rows) > 1:
            raise ValueError(f"`prompts` must be one prompt with `cache`. Received: {len(parsed.rows)}.")
        (prompt,) = parsed.rows
        new = None if max_length is None else max_length - len(prompt)
        if new is not None and new < 0:
            raise ValueError(
                "`max_length` must be at least the number of tokens of the prompt. "
                f"Received: max_length={max_length}, a prompt of {len(prompt)} tokens."
            )
        session.append(np.asarray(prompt, "int32"))
        chunks = session.iterate_ids(new, strategy, chunk_size) if new != 0 else iter(())
        return _with_prompt(np.asarray(prompt, "int32"), chunks)

    def chat_session(
        self,
        max_length: int | None,
        strategy: Strategy = "random",
        tokenizer: Any = None,
        seed: int = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        positions_in_cache: bool = False,
    ) -> ChatSession:
        """Create a `ChatSession` of this model, with the arguments of the class."""
        return ChatSession(self, max_length, strategy, tokenizer, seed, stop_token_ids, positions_in_cache)

    def compile_stats(self) -> dict[str, int]:
        """Return the number of compiled programs of generation by name.

        "read" reads prompts, "advance" generates in a buffer of all tokens, "stream" without a maximum length,
        "speculate" with a draft model, "search" with beams, and "start" creates caches from encoder outputs. At the
        logging level DEBUG, each compilation is logged.
        """
        return self.generator.compile_stats()


def _with_prompt(prompt, chunks):
    """Yield a prompt, unless it is empty, and the chunks of its continuation."""
    if len(prompt):
        yield prompt
    yield from chunks


def _check_defaults(seed, stop_token_ids, positions_in_cache=False):
    """Raise a `ValueError` unless arguments that a session overrides have their defaults."""
    given: dict[str, tuple[Any, Any]] = {"seed": (seed, 0), "stop_token_ids": (stop_token_ids, (END_ID,))}
    given["positions_in_cache"] = positions_in_cache, False
    for name, (value, default) in given.items():
        if not np.array_equal(value, default):
            raise ValueError(f"`{name}` must be left out with `cache`: the session has its own. Received: {value!r}.")


def format_results(parsed: Prompts, rows: Sequence[Row], tokenizer: Any, return_log_probs: bool) -> Any:
    """Return the results of `generate` for its rows."""
    results = [row.token_ids if tokenizer is None else tokenizer.detokenize(row.token_ids) for row in rows]
    if return_log_probs:
        return parsed.unwrap(results), parsed.unwrap([row.log_probs for row in rows])
    return parsed.unwrap(results)
