"""Text from a language model: what ties a model to the decoding loop, which knows none."""

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation import bucket_length, check_settings, generate, row_keys, sample
from tf_sparse_attention.models.language_model import LanguageModel
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.ops.attend import lowest

PAD_ID = 0
END_ID = 1


class Decoder(NamedTuple):
    """How a model is asked for one token after the other, with `tf_sparse_attention.generation.generate`.

    Attributes:
        step: the function of that name.
        start: function of prompts, int32 (B, L), and their lengths, int32 (B,), to the `state` to begin with.
    """

    step: Callable
    start: Callable


def decoder_of(model):
    """Returns the `Decoder` of a model: with a cache, or, where it can have none, by a full pass for each token."""
    if model.reason_against_cache is None:
        return Decoder(cached_step(model), functools.partial(filled_cache, model))
    logging.warning(
        "%s decodes without a cache, since %s: every token costs a pass over the whole sequence.",
        model.name,
        model.reason_against_cache,
    )
    return Decoder(full_pass_step(model), lambda prompt_ids, prompt_lengths: ())


def cached_step(model):
    """Returns a step for `tf_sparse_attention.generation.generate` that runs the model over one token a row.

    Args:
        model: `LanguageModel` that can decode with a cache.

    Returns:
        Function (inputs, index, cache) -> (logits, cache).
    """

    def step(inputs, index, cache):
        logits, cache = model.decode(ops.take_along_axis(inputs, index[:, None], axis=1), cache, index)
        return _without_padding(logits[:, 0]), cache

    return step


def filled_cache(model, prompt_ids, prompt_lengths):
    """Returns the cache of a model that has read all of its prompts but the last token, which the first step reads.

    Args:
        model: `LanguageModel` that can decode with a cache.
        prompt_ids: int32 (B, L), prompts from the left; L is the most tokens that a row can have.
        prompt_lengths: int32 (B,), tokens of each prompt.
    """
    batch_size, length = ops.shape(prompt_ids)
    inputs = ops.pad(ops.cast(prompt_ids, "int32"), [(0, 0), (1, 0)])[:, :-1]  # the start id is 0
    known = ops.arange(length, dtype="int32")[None, :] < prompt_lengths[:, None]
    cache = model.init_cache(batch_size, length)
    return model.backbone.prefill(ops.where(known, inputs, PAD_ID), cache, known)[1]


def full_pass_step(model):
    """Returns a step for `tf_sparse_attention.generation.generate` that runs the model over the whole buffer.

    Right for every causal pattern, and for selections that look at the whole sequence (`selection="top_k"`) too: what
    lies behind the position asked for is masked as padding. Id 0 is never the target of training, so its logit means
    nothing and is lowered to the minimum.

    Args:
        model: `LanguageModel`.

    Returns:
        Function (inputs, index, state) -> (logits, state), its state empty.
    """

    def step(inputs, index, state):
        batch_size, length = ops.shape(inputs)
        known = ops.arange(length, dtype="int32")[None, :] <= index[:, None]
        x = model.backbone({"token_ids": inputs, "padding_mask": known}, training=False)
        rows = ops.arange(batch_size, dtype="int32") * length + index
        logits = model.logits(ops.take(ops.reshape(x, (-1, x.shape[-1])), rows, axis=0))  # (B, V)
        return _without_padding(logits), state

    return step


def _without_padding(logits):
    """Returns logits (B, V) with the lowest number for padding."""
    return ops.where(ops.arange(logits.shape[-1]) == PAD_ID, lowest(logits.dtype), logits)


class Generator(Model):
    """The whole generation as one compiled program of a model, kept for calls to come.

    A `Model`, since `predict_on_batch` compiles its `call` on every backend, with the weights as arguments. One
    program serves all prompts, lengths and settings in a buffer of one size (see `bucket_length`) and batch size.

    Args:
        model: `LanguageModel`.

    Example:
        >>> generator = Generator(model)
        >>> generator.generate([[74, 107], []], max_length=100, temperature=0.8, top_p=0.95, seed=1)
    """

    def __init__(self, model):
        # float32 without casting: settings must reach the sampler as they are, whatever the model computes in.
        super().__init__(name="generator", dtype="float32", autocast=False)
        if not isinstance(model, LanguageModel):
            raise ValueError(f"`model` must be a `LanguageModel`. Received: model={model!r}.")
        if not model.backbone.causal:
            raise ValueError(
                "`model` must be causal to continue a text; one that sees later tokens guesses hidden ones. "
                "Received: a model with causal=False."
            )
        self.model = model
        self.step, self.start = decoder_of(model)
        self.built = True
        self.compile(jit_compile=True)

    def call(self, inputs):
        def sampler(logits, keys):
            return sample(logits, keys, inputs["temperature"], inputs["top_k"], inputs["top_p"], inputs["min_p"])

        prompts = inputs["prompt_ids"], inputs["prompt_lengths"]
        return generate(
            self.step,
            *prompts,
            inputs["max_length"],
            sampler,
            seed=inputs["keys"],
            stop_id=inputs["stop_id"],
            state=self.start(*prompts),
        )

    def generate(
        self, prompts, max_length, temperature=1.0, top_k=None, top_p=None, seed=0, stop_id=END_ID, min_p=None
    ):
        """Continues prompts; arguments and result are those of `generate_ids`."""
        vocabulary_size = self.model.backbone.vocabulary_size
        check_settings(temperature, top_k, top_p, min_p)
        _check_prompts(prompts, max_length, vocabulary_size)
        _check_seed(seed, len(prompts))
        buffer = np.zeros((len(prompts), self._buffer_length(max_length)), "int32")
        for row, prompt in zip(buffer, prompts, strict=True):
            row[: len(prompt)] = prompt
        token_ids, lengths = self.predict_on_batch(
            {
                "prompt_ids": buffer,
                "prompt_lengths": np.array([len(prompt) for prompt in prompts], "int32"),
                "max_length": np.int32(max_length),
                "temperature": np.float32(temperature),
                "top_k": np.int32(vocabulary_size if top_k is None else top_k),
                "top_p": np.float32(1 if top_p is None else top_p),
                "min_p": np.float32(0 if min_p is None else min_p),
                # Keys and not the seed, whose rank would ask for another program.
                "keys": ops.convert_to_numpy(row_keys(np.asarray(seed) % 2**32, len(prompts))),
                "stop_id": np.int32(-1 if stop_id is None else stop_id),
            }
        )
        return [row[:length] for row, length in zip(token_ids, lengths, strict=True)]

    def _buffer_length(self, max_length):
        most = self.model.backbone.max_length
        if most is not None and max_length > most:
            raise ValueError(
                f"`max_length` must be at most the {most} positions of the model. Received: max_length={max_length}."
            )
        length = bucket_length(max_length)
        return length if most is None else min(length, most)


def generate_ids(
    model, prompts, max_length, temperature=1.0, top_k=None, top_p=None, seed=0, stop_id=END_ID, min_p=None
):
    """Continues prompts of token ids.

    The prompts are read in one pass, and every token costs what its position costs in a pass. A model that cannot
    decode with a cache (`selection="top_k"`) costs a pass for each token, and says so in the log.

    Args:
        model: `LanguageModel`, for which a program is compiled, or a `Generator`, which keeps its programs.
        prompts: list of sequences of ids, without the start id; an empty one is a text from its beginning.
        max_length: tokens of a row, prompt included, at which it stops.
        temperature: 0 takes the most likely token each time. Default 1. See `tf_sparse_attention.generation.sample`
            for this, the next two and `min_p`.
        top_k: Default None: all.
        top_p: Default None: all.
        seed: integer, from which row i draws as row i of any batch, or one integer a row, from which equal rows draw
            alike wherever they stand. Default 0.
        stop_id: id after which a row stops. Default 1, the end of a document. None: none.
        min_p: Default None: all.

    Returns:
        List of int32 arrays: each prompt with its continuation, the stop id included if it came.

    Raises:
        ValueError: for a prompt that is not of ids of the vocabulary or longer than `max_length`, or a setting out of
            range.

    Example:
        >>> generate_ids(model, [[74, 107], []], max_length=100, temperature=0.8, top_p=0.95, seed=1)
    """
    generator = model if isinstance(model, Generator) else Generator(model)
    return generator.generate(prompts, max_length, temperature, top_k, top_p, seed, stop_id, min_p)


def generate_text(model, tokenizer, prompts, max_length, temperature=1.0, top_k=None, top_p=None, seed=0, min_p=None):
    """Continues prompts of text up to the end of the document.

    Args:
        model: `LanguageModel` or `Generator`.
        tokenizer: the tokenizer the model was trained with.
        prompts: list of `str`, or of `bytes`, valid UTF-8 or not.
        max_length: tokens (not characters) of a text, prompt included, at which it stops.
        temperature, top_k, top_p, seed, min_p: as for `generate_ids`.

    Returns:
        List of `str`: each prompt with its continuation. A character cut in two at the end is U+FFFD.

    Raises:
        ValueError: as `generate_ids`.

    Example:
        >>> generate_text(model, ByteTokenizer(), ["def main():"], max_length=300, temperature=0.8)
    """
    if isinstance(prompts, (str, bytes)):
        raise ValueError(f"`prompts` must be a list of texts. Received: prompts={prompts!r}.")
    ids = [tokenizer.tokenize(prompt) for prompt in prompts]
    rows = generate_ids(model, ids, max_length, temperature, top_k, top_p, seed, tokenizer.end_id, min_p)
    return [tokenizer.detokenize(row) for row in rows]


def _check_prompts(prompts, max_length, vocabulary_size):
    checks.check_count("max_length", max_length)
    if len(prompts) == 0:
        raise ValueError(f"`prompts` must hold at least one prompt. Received: prompts={prompts!r}.")
    for prompt in prompts:
        ids = np.asarray(prompt)
        right = ids.ndim == 1 and (ids.size == 0 or np.issubdtype(ids.dtype, np.integer))
        if not right or (ids.size and not 0 <= ids.min() <= ids.max() < vocabulary_size):
            raise ValueError(
                f"`prompts` must be sequences of integers in [0, {vocabulary_size}). Received: prompt={prompt!r}."
            )
        if ids.size > max_length:
            raise ValueError(
                "`max_length` must be at least the tokens of each prompt. "
                f"Received: max_length={max_length}, a prompt of {ids.size} tokens."
            )


def _check_seed(seed, num_rows):
    seeds = np.asarray(seed)
    if not np.issubdtype(seeds.dtype, np.integer) or seeds.shape not in ((), (num_rows,)):
        raise ValueError(f"`seed` must be an integer or one for each of {num_rows} rows. Received: seed={seed!r}.")
