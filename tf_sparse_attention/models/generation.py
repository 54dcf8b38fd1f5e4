"""Text from a language model: what ties a model to the decoding loop, which knows none."""

import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation import bucket_length, check_settings, generate, row_keys, sample
from tf_sparse_attention.models.language_model import LanguageModel
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.ops.attend import lowest

PAD_ID = 0
END_ID = 1


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
        padding = ops.arange(logits.shape[-1]) == PAD_ID
        return ops.where(padding, lowest(logits.dtype), logits), state

    return step


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
        self.step = full_pass_step(model)
        self.built = True
        self.compile(jit_compile=True)

    def call(self, inputs):
        def sampler(logits, keys):
            return sample(logits, keys, inputs["temperature"], inputs["top_k"], inputs["top_p"])

        return generate(
            self.step,
            inputs["prompt_ids"],
            inputs["prompt_lengths"],
            inputs["max_length"],
            sampler,
            seed=inputs["keys"],
            stop_id=inputs["stop_id"],
        )

    def generate(self, prompts, max_length, temperature=1.0, top_k=None, top_p=None, seed=0, stop_id=END_ID):
        """Continues prompts; arguments and result are those of `generate_ids`."""
        vocabulary_size = self.model.backbone.vocabulary_size
        check_settings(temperature, top_k, top_p)
        _check_prompts(prompts, max_length, vocabulary_size)
        _check_seed(seed, len(prompts))
        buffer = np.zeros((len(prompts), bucket_length(max_length)), "int32")
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
                # Keys and not the seed, whose rank would ask for another program.
                "keys": ops.convert_to_numpy(row_keys(np.asarray(seed) % 2**32, len(prompts))),
                "stop_id": np.int32(-1 if stop_id is None else stop_id),
            }
        )
        return [row[:length] for row, length in zip(token_ids, lengths, strict=True)]


def generate_ids(model, prompts, max_length, temperature=1.0, top_k=None, top_p=None, seed=0, stop_id=END_ID):
    """Continues prompts of token ids.

    Every token costs one pass over a buffer of up to 1.5 times `max_length`.

    Args:
        model: `LanguageModel`, for which a program is compiled, or a `Generator`, which keeps its programs.
        prompts: list of sequences of ids, without the start id; an empty one is a text from its beginning.
        max_length: tokens of a row, prompt included, at which it stops.
        temperature: 0 takes the most likely token each time. Default 1. See `tf_sparse_attention.generation.sample`
            for this and the next two.
        top_k: Default None: all.
        top_p: Default None: all.
        seed: integer, from which row i draws as row i of any batch, or one integer a row, from which equal rows draw
            alike wherever they stand. Default 0.
        stop_id: id after which a row stops. Default 1, the end of a document. None: none.

    Returns:
        List of int32 arrays: each prompt with its continuation, the stop id included if it came.

    Raises:
        ValueError: for a prompt that is not of ids of the vocabulary or longer than `max_length`, or a setting out of
            range.

    Example:
        >>> generate_ids(model, [[74, 107], []], max_length=100, temperature=0.8, top_p=0.95, seed=1)
    """
    generator = model if isinstance(model, Generator) else Generator(model)
    return generator.generate(prompts, max_length, temperature, top_k, top_p, seed, stop_id)


def generate_text(model, tokenizer, prompts, max_length, temperature=1.0, top_k=None, top_p=None, seed=0):
    """Continues prompts of text up to the end of the document.

    Args:
        model: `LanguageModel` or `Generator`.
        tokenizer: the tokenizer the model was trained with.
        prompts: list of `str`, or of `bytes`, valid UTF-8 or not.
        max_length: tokens (not characters) of a text, prompt included, at which it stops.
        temperature, top_k, top_p, seed: as for `generate_ids`.

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
    rows = generate_ids(model, ids, max_length, temperature, top_k, top_p, seed, tokenizer.end_id)
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
