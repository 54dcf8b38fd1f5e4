"""The signature `generate`, which continues prompts, and what it shares with that of an encoder-decoder."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.generation import bucket_length, generate, row_keys, sample
from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.models.steps import limit_vocabulary, make_decoder
from tf_sparse_attention.types import Tensor

MAX_TOKENS = 2**16  # in a row
MAX_ROWS = 2**12
SETTINGS = [
    tf.TensorSpec((), dtype, name)
    for name, dtype in {
        "max_length": tf.int32,
        "temperature": tf.float32,
        "top_p": tf.float32,
        "seed": tf.int32,
    }.items()
]


def generate_function(model: LanguageModel, tokenizer: Tokenizer, weights: Weights, jit_compile: bool) -> Callable:
    """Returns the signature as a `tf.function`; see `export_saved_model`."""
    ids_of_text = tokenizer.vocabulary_size, (tokenizer.end_id,), tokenizer.start_id
    loop, max_tokens = decoding_loop(model, weights, jit_compile, *ids_of_text), max_tokens_of(model)

    def continue_text(prompt, max_length, temperature, top_p, seed):
        ids = tokenizer.tokenize(prompt)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        # Without this dependency the loop would be compiled for invalid sizes before the assertions fail.
        with tf.control_dependencies(assertions("prompt", lengths, max_length, temperature, top_p, max_tokens)):
            lengths = tf.identity(lengths)
        num_rows, length = bucket(tf.size(prompt), 1, MAX_ROWS), bucket(max_length, 64, max_tokens)
        # Rows that pad the batch are finished from the start.
        row_padding = [[0, num_rows - tf.size(prompt)]]
        longest = bucket(tf.reduce_max(tf.concat([lengths, [1]], axis=0)), 64, max_tokens)
        rows = loop(
            *(tf.pad(ids.to_tensor(shape=tf.stack([-1, size])), [*row_padding, [0, 0]]) for size in (longest, length)),
            tf.pad(lengths, row_padding),
            tf.pad(tf.fill(tf.shape(lengths), max_length), row_padding),
            row_keys(seed, num_rows),
            temperature,
            top_p,
        )
        return outputs(tokenizer, [x[: tf.size(prompt)] for x in rows])

    return tf.function(continue_text, input_signature=[strings("prompt"), *SETTINGS], autograph=False)


def strings(name: str) -> tf.TensorSpec:
    """Returns what describes the strings (B,) of an input."""
    return tf.TensorSpec((None,), tf.string, name)


def outputs(tokenizer: Tokenizer, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Returns the outputs of `generate` from token ids (B, T), the numbers of tokens and the log-probabilities."""
    token_ids, num_tokens, log_prob = rows
    text = tokenizer.detokenize(token_ids)
    return {
        "text": tf.strings.unicode_transcode(text, "UTF-8", "UTF-8"),
        "text_bytes": text,
        "num_tokens": num_tokens,
        "log_prob": log_prob,
    }


def decoding_loop(
    model: LanguageModel,
    weights: Weights,
    jit_compile: bool,
    num_ids: int,
    stop_token_ids: Sequence[int],
    start_id: int,
) -> Callable:
    """Returns the part without strings, which XLA does not support; it is compiled for the sizes of each call.

    Args:
        model: the `LanguageModel`.
        weights: its `Weights`.
        jit_compile: whether XLA compiles it.
        num_ids: only ids below it are sampled.
        stop_token_ids: after which a row stops.
        start_id: what the model reads before the first token.

    Returns:
        `tf.function` of prompts int32 (B, P), a buffer (B, L) that begins with them, their lengths, limits (B,), keys
        (B, 2), temperature and top_p; returns token ids (B, L), numbers of tokens and log-probabilities (B,).
    """
    decoder = make_decoder(model)
    step = limit_vocabulary(decoder.step, num_ids)

    def loop(prompt_ids, buffer, prompt_lengths, limits, keys, temperature, top_p):
        def sampler(logits, keys):
            return sample(logits, keys, temperature, top_p=top_p)

        with weights.scope():
            state = decoder.start(prompt_ids, prompt_lengths, tf.shape(buffer)[1])
            rows = generate(step, buffer, prompt_lengths, limits, sampler, keys, stop_token_ids, start_id, state)
        return rows.token_ids, rows.lengths, tf.reduce_sum(rows.log_probs, axis=1)

    return tf.function(loop, jit_compile=jit_compile, autograph=False)


def max_tokens_of(model: LanguageModel | SequenceToSequence) -> int:
    """Returns the maximal number of tokens in a row, limited by the positions of the model."""
    return min(MAX_TOKENS, model.backbone.max_length or MAX_TOKENS)


def assertions(
    name: str, lengths: Tensor, max_length: Tensor, temperature: Tensor, top_p: Tensor, max_tokens: int
) -> list[tf.Operation]:
    """Returns the checks of the inputs of `generate`: prompts by name, with their lengths (B,), and the settings."""
    longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
    of_lengths = (
        (max_length >= longest, "`max_length` must be at least 1 and the length of each prompt.", max_length),
        (max_length <= max_tokens, f"`max_length` must be at most {max_tokens}.", max_length),
    )
    return checks_of(of_lengths) + setting_assertions(name, tf.size(lengths), temperature, top_p)


def setting_assertions(name: str, num_rows: Tensor, temperature: Tensor, top_p: Tensor) -> list[tf.Operation]:
    """Returns the checks of the number of rows of an input by name, and of the settings of `sample`."""
    conditions = (
        (num_rows <= MAX_ROWS, f"`{name}` must have at most {MAX_ROWS} rows.", num_rows),
        ((temperature >= 0) & (temperature < math.inf), "`temperature` must be a number of at least 0.", temperature),
        ((top_p > 0) & (top_p <= 1), "`top_p` must be a number in (0, 1].", top_p),
    )
    return checks_of(conditions)


def length_assertions(name: str, lengths: Tensor, rows: Tensor, least: int) -> list[tf.Operation]:
    """Returns the checks of an input by name, the lengths (B,), from `least`, of rows (B, T, ...) padded to T."""
    right = tf.reduce_all((lengths >= least) & (lengths <= tf.shape(rows)[1]))
    conditions = (
        (tf.size(lengths) == tf.shape(rows)[0], f"`{name}` must have a number for each row.", tf.size(lengths)),
        (right, f"`{name}` must be numbers from {least} to the length of the rows.", lengths),
    )
    return checks_of(conditions)


def checks_of(conditions: Sequence[tuple[Tensor, str, Tensor]]) -> list[tf.Operation]:
    """Returns the checks of conditions, each with what must be and what came."""
    return [tf.debugging.Assert(right, [f"{message} Received:", value]) for right, message, value in conditions]


def bucket(number: Tensor, smallest: int, largest: int) -> Tensor:
    """Returns, in a graph, the smallest size of `bucket_length` that is at least `number`."""
    sizes = [min(smallest, largest)]
    while sizes[-1] < largest:
        sizes.append(min(bucket_length(sizes[-1] + 1, smallest), largest))
    return tf.gather(sizes, tf.minimum(tf.searchsorted(sizes, [number])[0], len(sizes) - 1))
