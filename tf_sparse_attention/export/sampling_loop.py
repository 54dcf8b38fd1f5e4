"""Sampling loop of the signatures `generate`, compiled for a few sizes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.export.input_checks import Condition, require
from tf_sparse_attention.export.saved_model import Input, Signature
from tf_sparse_attention.export.token_rows import maximum
from tf_sparse_attention.generation import bucket_length, generate, row_keys, sample
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.steps import limit_vocabulary, make_decoder, read_prompts
from tf_sparse_attention.types import Tensor

MAX_ROWS = 2**12
MAX_TOKENS = 2**16  # per row
MIN_LENGTH = 64  # smallest bucket of lengths, in tokens
COMPILATION_NOTE = """Values out of range are errors. The first call for each size compiles a program, which takes
seconds. The number of rows is rounded up to 1, 2, 3, 4, 6, 8, 12, ..., lengths to 64, 96, 128, 192, ..."""


class Prompts(NamedTuple):
    """Prompts of a call.

    Attributes:
        ids: int32 (B, P), dense or ragged.
        lengths: int32 (B,), at most P.
        max_length: int32 (), maximum number of tokens per row, including the prompt.
        conditions: further conditions of the inputs. Default: none.
        read_source: function from a number of rows, at least B, to a source with this number of rows.
    """

    ids: Tensor
    lengths: Tensor
    max_length: Tensor
    conditions: Sequence[Condition] = ()
    read_source: Callable[[Tensor], Mapping[str, Tensor]] = lambda num_rows: {}


class SamplingLoop:
    """Sampling of token ids. Strings are converted outside, because XLA does not support strings.

    Args:
        model: the `LanguageModel`.
        codec: tokenizer or codec. Only its ids are sampled.
        jit_compile: whether XLA compiles the loop.
        stop_token_ids: ids that end a row. Default: none.
        max_length: maximum number of tokens in a row. None (default): 65536, or the positions of the model.
        encode: function from a source to the inputs of the model's cross-attention. None (default): no source.
    """

    def __init__(
        self,
        model: LanguageModel,
        codec: Any,
        jit_compile: bool,
        stop_token_ids: Sequence[int] = (),
        max_length: int | None = None,
        encode: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None,
    ) -> None:
        checks.check_switch("jit_compile", jit_compile)
        self.max_length = max_length or min(MAX_TOKENS, model.backbone.max_length or MAX_TOKENS)
        decoder = make_decoder(model)
        step = limit_vocabulary(decoder.step, codec.vocabulary_size)

        def loop(source, prompt_ids, buffer, prompt_lengths, limits, keys, temperature, top_p):
            def sampler(logits, keys):
                return sample(logits, keys, temperature, top_p=top_p)

            encoded = None if encode is None else encode(source)
            state = read_prompts(decoder, prompt_ids, prompt_lengths, tf.shape(buffer)[1], encoded)
            ids = stop_token_ids, codec.start_id
            rows = generate(step, buffer, prompt_lengths, limits, sampler, keys, *ids, state)
            return rows.token_ids, rows.lengths, tf.reduce_sum(rows.log_probs, axis=1)

        self._loop = tf.function(loop, jit_compile=jit_compile, autograph=False)

    def signature(
        self,
        summary: str,
        inputs: Sequence[Input],
        read: Callable[..., Prompts],
        outputs: Mapping[str, str],
        write: Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]],
        rows: str,
        temperature: float = 1.0,
        top_p: float = 1.0,
        notes: str = "",
    ) -> Signature:
        """Return the signature `generate`, with the further inputs `temperature`, `top_p` and `seed`.

        Args:
            summary, outputs: see `Signature`.
            inputs: the first inputs; the first of them has one row per sample.
            read: function from `inputs` to `Prompts`.
            write: function from ids, int32 (B, max_length), their lengths, int32 (B,), and the log-probabilities of the
                continuations, float32 (B,), to the outputs.
            rows: name of the samples, such as "texts".
            temperature, top_p: values in the example.
            notes: text before the notes about compilation.
        """
        likely = "in (0, 1]: sample from the most likely tokens with this total probability"
        settings = [
            Input.scalar(
                "temperature", tf.float32, "0: always the most likely token; 1: as the model predicts", temperature
            ),
            Input.scalar("top_p", tf.float32, likely, top_p),
            Input.scalar("seed", tf.int32, f"equal seeds give equal {rows}; row i is the same in every batch", 1),
        ]

        def run(*tensors):
            *given, temperature, top_p, seed = tensors
            return write(*self._sample(inputs[0].spec.name, read(*given), temperature, top_p, seed))

        return Signature(run, [*inputs, *settings], outputs, summary, f"{notes}\n{COMPILATION_NOTE}".strip())

    def _sample(self, name, prompts, temperature, top_p, seed):
        ids, lengths, max_length, conditions, read_source = prompts
        count, longest = tf.size(lengths), maximum(lengths)
        is_temperature = (temperature >= 0) & (temperature < math.inf)
        is_long_enough = max_length >= longest
        # The loop, which depends on `count`, is not compiled for invalid sizes.
        count = require(
            count,
            *conditions,
            (is_long_enough, "`max_length` must be positive and at least the length of each prompt.", max_length),
            (max_length <= self.max_length, f"`max_length` must be at most {self.max_length}.", max_length),
            (count <= MAX_ROWS, f"`{name}` must have at most {MAX_ROWS} rows.", count),
            (is_temperature, "`temperature` must be a number of at least 0.", temperature),
            ((top_p > 0) & (top_p <= 1), "`top_p` must be a number in (0, 1].", top_p),
        )
        num_rows, width = bucket(count, 1, MAX_ROWS), bucket(max_length, MIN_LENGTH, self.max_length)
        longest = bucket(longest, MIN_LENGTH, self.max_length)
        longest = tf.minimum(longest, ids.shape[1] or longest)
        ids = ids.to_tensor() if isinstance(ids, tf.RaggedTensor) else ids
        ids = ids[:, :width]
        missing = [0, num_rows - count]  # padding rows: finished from the start
        buffer = tf.pad(ids, [missing, [0, width - tf.shape(ids)[1]]])
        rows = self._loop(
            read_source(num_rows),
            buffer[:, :longest],
            buffer,
            tf.pad(lengths, [missing]),
            tf.pad(tf.fill([count], max_length), [missing]),
            row_keys(seed, num_rows),
            temperature,
            top_p,
        )
        ids, lengths, log_probs = (each[:count] for each in rows)
        return ids[:, :max_length], lengths, log_probs


def bucket(number: Tensor | int, smallest: int, largest: int) -> Tensor:
    """Return, in a graph, the smallest size of `bucket_length` that is at least `number`."""
    sizes = [min(smallest, largest)]
    while sizes[-1] < largest:
        sizes.append(min(bucket_length(sizes[-1] + 1, smallest), largest))
    return tf.gather(sizes, tf.minimum(tf.searchsorted(sizes, [number])[0], len(sizes) - 1))
