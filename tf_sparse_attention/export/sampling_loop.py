"""Sampling loop of the signatures `generate`, compiled for a few sizes."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.input_checks import MAX_ROWS
from tf_sparse_attention.export.saved_model import Input
from tf_sparse_attention.export.token_rows import maximum
from tf_sparse_attention.generation import bucket_length, generate, row_keys, sample
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.steps import limit_vocabulary, make_decoder, read_prompts
from tf_sparse_attention.types import Tensor

MAX_TOKENS = 2**16  # per row
MIN_LENGTH = 64  # smallest bucket of lengths, in tokens
COMPILATION_NOTE = """Values out of range are errors. The first call for each size compiles a program, which takes
seconds. The number of rows is rounded up to 1, 2, 3, 4, 6, 8, 12, ..., lengths to 64, 96, 128, 192, ..."""


class SamplingLoop:
    """Sampling of token ids. Strings are converted outside, because XLA does not support strings.

    Args:
        model: the `LanguageModel`.
        num_ids: only ids below `num_ids` are sampled.
        stop_token_ids: ids that end a row.
        start_id: id before the first token.
        jit_compile: whether XLA compiles the loop.
        max_length: maximum number of tokens in a row. None (default): 65536, or the positions of the model.
        encode: function from a source to the inputs of the model's cross-attention. None (default): no source.
    """

    def __init__(
        self,
        model: LanguageModel,
        num_ids: int,
        stop_token_ids: Sequence[int],
        start_id: int,
        jit_compile: bool,
        max_length: int | None = None,
        encode: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None,
    ) -> None:
        self.max_length = max_length or min(MAX_TOKENS, model.backbone.max_length or MAX_TOKENS)
        decoder = make_decoder(model)
        step = limit_vocabulary(decoder.step, num_ids)

        def loop(source, prompt_ids, buffer, prompt_lengths, limits, keys, temperature, top_p):
            def sampler(logits, keys):
                return sample(logits, keys, temperature, top_p=top_p)

            encoded = None if encode is None else encode(source)
            state = read_prompts(decoder, prompt_ids, prompt_lengths, tf.shape(buffer)[1], encoded)
            rows = generate(step, buffer, prompt_lengths, limits, sampler, keys, stop_token_ids, start_id, state)
            return rows.token_ids, rows.lengths, tf.reduce_sum(rows.log_probs, axis=1)

        self._loop = tf.function(loop, jit_compile=jit_compile, autograph=False)

    def __call__(
        self,
        prompt_ids: Tensor,
        prompt_lengths: Tensor,
        max_length: Tensor | int,
        settings: Sequence[Tensor],
        assertions: Sequence[tf.Operation],
        read_source: Callable[[Tensor], Mapping[str, Tensor]] = lambda num_rows: {},
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Continue prompts. Return the rows, their lengths and the log-probabilities of the continuations.

        Args:
            prompt_ids: int32 (B, P) or ragged.
            prompt_lengths: int32 (B,), at most P.
            max_length: maximum number of tokens per row, including the prompt.
            settings: temperature, top_p and seed.
            assertions: checks of the inputs. They run first, so that the loop is not compiled for invalid sizes.
            read_source: function from a number of rows, at least B, to a source with this number of rows.

        Returns:
            int32 (B, L) with L at least `max_length`, int32 (B,) and float32 (B,).
        """
        temperature, top_p, seed = settings
        with tf.control_dependencies(assertions):
            count = tf.size(prompt_lengths)
            num_rows, width = bucket(count, 1, MAX_ROWS), bucket(max_length, MIN_LENGTH, self.max_length)
            longest = bucket(maximum(prompt_lengths), MIN_LENGTH, self.max_length)
            longest = tf.minimum(longest, prompt_ids.shape[1] or longest)
        missing = [0, num_rows - count]  # padding rows: finished from the start
        buffer = tf.pad(_with_width(prompt_ids, width), [missing, [0, 0]])
        rows = self._loop(
            read_source(num_rows),
            buffer[:, :longest],
            buffer,
            tf.pad(prompt_lengths, [missing]),
            tf.pad(tf.fill([count], max_length), [missing]),
            row_keys(seed, num_rows),
            temperature,
            top_p,
        )
        return tuple(each[:count] for each in rows)


def _with_width(ids, width):
    """Pad or truncate rows of ids to int32 (B, width)."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.to_tensor(shape=tf.stack([-1, width]))
    ids = ids[:, :width]
    return tf.pad(ids, [[0, 0], [0, width - tf.shape(ids)[1]]])


def bucket(number: Tensor | int, smallest: int, largest: int) -> Tensor:
    """Return, in a graph, the smallest size of `bucket_length` that is at least `number`."""
    sizes = [min(smallest, largest)]
    while sizes[-1] < largest:
        sizes.append(min(bucket_length(sizes[-1] + 1, smallest), largest))
    return tf.gather(sizes, tf.minimum(tf.searchsorted(sizes, [number])[0], len(sizes) - 1))


def setting_inputs(rows: str, temperature: float = 0.8, top_p: float = 0.95) -> list[Input]:
    """Return the inputs `temperature`, `top_p` and `seed`. `rows` names the samples, such as "texts"."""
    likely = "in (0, 1]: sample from the most likely tokens with this total probability"
    return [
        Input.scalar(
            "temperature", tf.float32, "0: always the most likely token; 1: as the model predicts", temperature
        ),
        Input.scalar("top_p", tf.float32, likely, top_p),
        Input.scalar("seed", tf.int32, f"equal seeds give equal {rows}; row i is the same in every batch", 1),
    ]


def text_outputs(tokenizer: Tokenizer, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the outputs of a signature for rows: token ids (B, T), numbers of tokens (B,), log-probabilities (B,)."""
    token_ids, num_tokens, log_prob = rows
    text = tokenizer.detokenize(token_ids)
    return {
        "text": tf.strings.unicode_transcode(text, "UTF-8", "UTF-8"),
        "text_bytes": text,
        "num_tokens": num_tokens,
        "log_prob": log_prob,
    }
