"""Text generation with a language model: `generate` and `stream`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.generation import DecodingConfig
from tf_sparse_attention.models.generator import END_ID, Generator, Row
from tf_sparse_attention.models.prompts import Prompts, parse_prompts
from tf_sparse_attention.types import Tensor


class Generation:
    """Mixin of `LanguageModel`: generates continuations of prompts.

    Prompts are prefilled in one pass, and each token costs what its position costs in a pass. A model that cannot
    decode with a cache (`selection="top_k"`) needs a pass for each token, and logs a warning.
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
        strategy: str | DecodingConfig | Callable = "random",
        tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        padding_mask: Tensor | None = None,
        return_log_probs: bool = False,
    ) -> Any:
        """Continues prompts of text or of token ids.

        Args:
            prompts: `str`, `bytes`, or a sequence of ids; or a list, array or tensor of these: texts (B,) or ids
                (B, T). The start id 0 is added; a prompt may begin with it, and its result is without it. An empty
                prompt begins a document.
            max_length: tokens (not characters) of a row, prompt included, at which it stops.
            strategy: "random" (default: samples from the model's distribution), "greedy", "beam", a
                `tf_sparse_attention.generation.Sampling` or `BeamSearch`, or a function (logits (B, V), keys) -> ids
                (B,), such as `tf_sparse_attention.generation.sample`. Pass the same function object in every call: a
                program is compiled for each one.
            tokenizer: the tokenizer the model was trained with. With one, the results are text, and only its
                ids are sampled; it is required for prompts of text. None (default): the results are ids.
            seed: an integer, with which row i is the same in a batch of any size; or one integer a row, with which the
                order of rows does not matter. Default 0.
            stop_token_ids: an id, or several, after which a row stops. Default 1, the end of a document. None: only
                `max_length` stops a row.
            padding_mask: bool (B, T), False for padding, on the left or the right, where `prompts` is an array of ids.
            return_log_probs: whether to return, too, the log-probability of each token that was added, the stop id
                included, under the model's distribution over all ids but padding: before temperature, `top_k`, `top_p`
                and `min_p`. Default False.

        Returns:
            For one prompt its result, for a list of prompts a list: `str`, in which a character cut off at the
            end is U+FFFD, or int32 array (T,), the stop id included if it came. With `return_log_probs` a pair of that
            and float32 arrays, likewise.

        Raises:
            ValueError: for a prompt that is not of ids of the vocabulary, not UTF-8 where the tokenizer wants it, or
                longer than `max_length`; for a setting out of range.

        Example:
            >>> model.generate("def main():", max_length=300, tokenizer=ByteTokenizer())
            >>> strategy = tsa.generation.Sampling(temperature=0.8, top_p=0.95)
            >>> model.generate([[74, 107], []], max_length=100, strategy=strategy, seed=1)
        """
        checks.check_switch("return_log_probs", return_log_probs)
        parsed = parse_prompts(prompts, self.backbone.vocabulary_size, tokenizer, padding_mask)
        num_ids = None if tokenizer is None else tokenizer.vocabulary_size
        rows = self.generator.generate(parsed.rows, max_length, strategy, seed, stop_token_ids, num_ids)
        return format_results(parsed, rows, tokenizer, return_log_probs)

    def stream(
        self,
        prompt: Any,
        max_length: int | None,
        strategy: str | DecodingConfig | Callable = "random",
        tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        chunk_size: int = 1,
        positions_in_cache: bool = False,
    ) -> Iterator[Any]:
        """Continues one prompt and yields the text as it is generated.

        The pieces concatenated are what `generate` returns, prompt included. A piece of text ends where later tokens
        cannot change it: a character of several bytes, and with subwords a word, is never split.

        Args:
            prompt: `str`, `bytes` or a sequence of ids.
            max_length: as for `generate`. None: no end but a stop id, with memory that does not grow, of a model whose
                caches do not (see `init_cache`); of ids, without a tokenizer and without a repetition penalty.
            tokenizer, seed, stop_token_ids: as for `generate`.
            strategy: as for `generate`, without beam search.
            chunk_size: tokens a piece; larger ones cost less. Default 1.
            positions_in_cache: where `max_length` is None, whether rotary positions are places in the cache, so that no
                distance is beyond those of training: see `init_cache`. The prompt is then read token by token. Default
                False.

        Yields:
            `str` with a tokenizer, else int32 arrays; no empty ones.

        Raises:
            ValueError: as `generate`.

        Example:
            >>> for piece in model.stream("def main():", max_length=300, tokenizer=ByteTokenizer()):
            ...     print(piece, end="", flush=True)
        """
        checks.check_count("chunk_size", chunk_size)
        checks.check_switch("positions_in_cache", positions_in_cache)
        parsed = parse_prompts(prompt, self.backbone.vocabulary_size, tokenizer)
        if len(parsed.rows) > 1:
            raise ValueError(f"`prompt` must be one prompt. Received: {len(parsed.rows)}.")
        if max_length is None:
            if tokenizer is not None:
                raise ValueError(
                    "`tokenizer` must be None where `max_length` is None: pass the ids that it makes of a text, and "
                    "decode those that come. Received: a tokenizer."
                )
            settings = strategy, seed, stop_token_ids, chunk_size, positions_in_cache
            return self.generator.stream_unbounded(parsed.rows[0], *settings)
        if positions_in_cache:
            raise ValueError(
                "`positions_in_cache` must be False unless `max_length` is None. Received: positions_in_cache=True, "
                f"max_length={max_length}."
            )
        num_ids = None if tokenizer is None else tokenizer.vocabulary_size
        row_lists = self.generator.iterate(parsed.rows, max_length, strategy, seed, stop_token_ids, num_ids, chunk_size)
        return iterate_pieces((row.token_ids for (row,) in row_lists), tokenizer)


def format_results(parsed: Prompts, rows: Sequence[Row], tokenizer: Any, return_log_probs: bool) -> Any:
    """Returns what `generate` does of the rows of its prompts."""
    results = [row.token_ids if tokenizer is None else tokenizer.detokenize(row.token_ids) for row in rows]
    if return_log_probs:
        return parsed.unwrap(results), parsed.unwrap([row.log_probs for row in rows])
    return parsed.unwrap(results)


def iterate_pieces(rows: Iterable[Tensor], tokenizer: Any) -> Iterator[Any]:
    """Yields the new ids of each row, or the new text of its stable prefix, and at the end the rest."""
    yielded, row = 0, ()
    for row in rows:
        stable = row if tokenizer is None else tokenizer.stable_prefix(row)
        if len(stable) > yielded:
            yield stable[yielded:]
            yielded = len(stable)
    if tokenizer is not None and len(text := tokenizer.detokenize(row)) > yielded:
        yield text[yielded:]
