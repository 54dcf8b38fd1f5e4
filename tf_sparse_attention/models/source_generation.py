"""Text generation with an encoder-decoder: `generate` and `stream`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.generation import bucket_length
from tf_sparse_attention.generation.strategies import Strategy
from tf_sparse_attention.models.generation import format_results
from tf_sparse_attention.models.generator import END_ID, Generator, pad_prompts
from tf_sparse_attention.models.programs import Programs
from tf_sparse_attention.models.prompts import Prompts, iterate_pieces, parse_prompts
from tf_sparse_attention.types import Tensor


class SourceGeneration:
    """Mixin of `SequenceToSequence`: encode the source once, then decode with KV caches of source and target."""

    decoder: Any
    source_vocabulary_size: int
    encoder: Any
    encode: Callable
    _programs: Programs | None = None

    @property
    def generator(self) -> Generator:
        """The `Generator` of the decoder, with its compiled programs."""
        return self.decoder.generator

    def compile_stats(self) -> dict[str, int]:
        """Return the number of compiled programs by name, with "encode"; see `LanguageModel.compile_stats`."""
        return {**self.generator.compile_stats(), **({} if self._programs is None else self._programs.counts)}

    def generate(
        self,
        sources: Any,
        max_length: int,
        strategy: Strategy = "greedy",
        tokenizer: Any = None,
        source_tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        return_log_probs: bool = False,
    ) -> Any:
        """Generate a target for each source.

        Args:
            sources: `str`, `bytes`, or a sequence of ids; or a list, array or tensor of these, like the prompts of
                `LanguageModel.generate`. No end id is added. Append the end id if sources in training had one.
            max_length: maximum number of tokens in a target.
            strategy: see `LanguageModel.generate`. Default "greedy"; "beam" is usual for translation.
            tokenizer: tokenizer of the targets. Only its ids are sampled, and the results are text. Default None: the
                results are ids.
            source_tokenizer: tokenizer for text sources. None: `tokenizer`.
            seed, stop_token_ids, return_log_probs: as for `LanguageModel.generate`.

        Returns:
            As for `LanguageModel.generate`: the target of one source, or a list of targets.

        Raises:
            ValueError: if a source is empty or has ids outside the vocabulary, and as for `LanguageModel.generate`.

        Example:
            >>> model.generate(["Der Hund bellt."], max_length=100, strategy="beam", tokenizer=tokenizer)
        """
        checks.check_switch("return_log_probs", return_log_probs)
        parsed = self._parse(sources, source_tokenizer, tokenizer)
        rows = self.generator.generate(
            **self.generation_request(parsed, max_length, strategy, seed, stop_token_ids, tokenizer)
        )
        return format_results(parsed, rows, tokenizer, return_log_probs)

    def stream(
        self,
        source: Any,
        max_length: int,
        strategy: Strategy = "greedy",
        tokenizer: Any = None,
        source_tokenizer: Any = None,
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        chunk_size: int = 1,
    ) -> Iterator[Any]:
        """Iterate over pieces of the target of one source during generation; see `LanguageModel.stream`."""
        checks.check_count("chunk_size", chunk_size)
        parsed = self._parse(source, source_tokenizer, tokenizer)
        if len(parsed.rows) > 1:
            raise ValueError(f"`source` must be one source. Received: {len(parsed.rows)}.")
        request = self.generation_request(parsed, max_length, strategy, seed, stop_token_ids, tokenizer)
        row_lists = self.generator.iterate(**request, chunk_size=chunk_size)
        return iterate_pieces((row.token_ids for (row,) in row_lists), tokenizer)

    def _parse(self, sources: Any, source_tokenizer: Any, tokenizer: Any) -> Prompts:
        tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
        parsed = parse_prompts(sources, self.source_vocabulary_size, tokenizer, name="sources", remove_start_id=False)
        if not all(len(row) for row in parsed.rows):
            raise ValueError("`sources` must have at least one token each. Received: an empty source.")
        return parsed

    def generation_request(
        self,
        parsed: Prompts,
        max_length: int,
        strategy: Strategy,
        seed: int | Sequence[int] | Tensor,
        stop_token_ids: int | Sequence[int] | Tensor | None,
        tokenizer: Any,
    ) -> dict[str, Any]:
        """Encode the sources and return the arguments of `Generator.iterate`; arguments as in `generate`."""
        settings = {"max_length": max_length, "strategy": strategy, "seed": seed, "stop_token_ids": stop_token_ids}
        return {
            **settings,
            "prompts": [np.zeros(0, "int32")] * len(parsed.rows),
            "num_ids": None if tokenizer is None else tokenizer.vocabulary_size,
            "encoded": self._encoded(parsed.rows),
        }

    def _encoded(self, rows):
        """Encode sources, padded to one of a few lengths."""
        longest = max(map(len, rows))
        limit = self.encoder.max_length
        size = bucket_length(longest) if limit is None else min(bucket_length(longest), limit)
        if longest > size:
            raise ValueError(f"`sources` must have at most {limit} tokens each. Received: {longest} tokens.")
        mask = np.arange(size) < np.array([len(row) for row in rows])[:, None]
        if self._programs is None:
            self._programs = Programs(self)
        encode = self._programs.get(("encode",), lambda: self.encode)
        return encode({"encoder_token_ids": pad_prompts(rows, size), "encoder_padding_mask": mask})
