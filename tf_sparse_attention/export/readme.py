"""The README.md in a SavedModel."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.sampling_loop import MAX_ROWS, MAX_TOKENS, max_tokens_of
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.version import __version__


def make_readme(model: LanguageModel, tokenizer: Tokenizer, weights: Weights, sequence_length: int, name: str) -> str:
    """Returns the text; see `export_saved_model`."""
    return _README.format(
        name=name,
        parameters=f"{model.count_params():,}",
        blocks=model.backbone.num_layers,
        vocabulary=model.backbone.vocabulary_size,
        tokenizer=type(tokenizer).__name__,
        needs=NEEDS[tokenizer.needs_tensorflow_text],
        window=sequence_length,
        size=size_of(weights),
        hidden_dim=model.backbone.hidden_dim,
        most_tokens=max_tokens_of(model),
        most_rows=MAX_ROWS,
        versions=versions(),
    )


def make_source_readme(model: SequenceToSequence, tokenizers: Sequence[Tokenizer], weights: Weights, name: str) -> str:
    """Returns the text of an encoder-decoder, `tokenizers` those of targets and sources; see
    `export_sequence_to_sequence`.
    """
    names = " and ".join(dict.fromkeys(f"`{type(tokenizer).__name__}`" for tokenizer in tokenizers))
    return _SOURCE_README.format(
        name=name,
        parameters=f"{model.count_params():,}",
        vocabulary=model.vocabulary_size,
        tokenizer=names,
        needs=NEEDS[any(tokenizer.needs_tensorflow_text for tokenizer in tokenizers)],
        size=size_of(weights),
        most_tokens=max_tokens_of(model),
        most_source_tokens=model.encoder.max_length or MAX_TOKENS,
        most_rows=MAX_ROWS,
        versions=versions(),
    )


def size_of(weights: Weights) -> str:
    """Returns the size of the weights as text."""
    return f"{weights.num_bytes / 1e6:,.1f} MB{', the large ones in 8 bits' if weights.numbers else ''}"


def versions() -> str:
    """Returns what a SavedModel was written by."""
    return f"tf_sparse_attention {__version__}, Keras {keras.__version__}, TensorFlow {tf.__version__}"


NEEDS = {
    False: "To run it TensorFlow is enough; the library that wrote it is not needed.",
    True: "To run it TensorFlow and tensorflow-text are needed (`import tensorflow_text` before it is loaded); the "
    "library that wrote it is not.",
}
_README = """# A language model as a SavedModel

{parameters} parameters, {blocks} blocks, a vocabulary of {vocabulary} ids of `{tokenizer}`; weights of
{size}. Written by {versions}.
{needs}

## `score`: how likely is a text?

| | name | type | meaning |
|---|---|---|---|
| in | `text` | string (B,) | bytes; UTF-8 or not, of any length |
| out | `nats` | float32 (B,) | negative logarithm of the probability of the text |
| out | `num_bytes` | int32 (B,) | bytes of the text |
| out | `num_tokens` | int32 (B,) | tokens of the text |
| out | `bits_per_byte` | float32 (B,) | nats / ln 2 / num_bytes; 0 for an empty text |

Nothing is cut off. A text of more than {window} tokens is scored in consecutive windows of {window}, every token once;
each window starts without context. The end of the document is not scored.

## `generate`: how may a text go on?

| | name | type | meaning |
|---|---|---|---|
| in | `prompt` | string (B,) | bytes; an empty one starts a document; at most {most_rows} rows |
| in | `max_length` | int32 () | tokens of a row, prompt included, at which it stops; at most {most_tokens} |
| in | `temperature` | float32 () | 0: the most likely token each time; 1: as the model says |
| in | `top_p` | float32 () | in (0, 1]: draws from the most likely tokens that have this probability together |
| in | `seed` | int32 () | equal seeds give equal texts; row i draws the same whatever the other rows are |
| out | `text` | string (B,) | prompt and continuation, valid UTF-8; what is not is U+FFFD |
| out | `text_bytes` | string (B,) | the same, as it is |
| out | `num_tokens` | int32 (B,) | tokens of prompt and continuation |
| out | `log_prob` | float32 (B,) | log-probability of the continuation and its end, padding left out, in nats |

A row ends with the document or at `max_length`. A longer prompt and a setting out of range are errors. The first call
of each size (rows and `max_length`, rounded up to 1, 2, 3, 4, 6, 8, 12, ...) compiles a program, which takes seconds.

## `embed`: texts as vectors

| | name | type | meaning |
|---|---|---|---|
| in | `text` | string (B,) | bytes; UTF-8 or not, of any length |
| out | `embedding` | float32 (B, {hidden_dim}) | mean of the last vectors over the tokens; 0 for an empty text |
| out | `num_tokens` | int32 (B,) | tokens of the text |

Windows are those of `score`, one token shorter where the model has no position left for the start.

## Example

```python
import tensorflow as tf

served = tf.saved_model.load("{name}")
score, generate, embed = (served.signatures[name] for name in ("score", "generate", "embed"))

result = score(text=tf.constant(["def main():", "A line of text."]))
print(result["bits_per_byte"].numpy(), result["nats"].numpy(), result["num_bytes"].numpy())

result = generate(
    prompt=tf.constant(["def main():", ""]),
    max_length=tf.constant(60),
    temperature=tf.constant(0.8),
    top_p=tf.constant(0.95),
    seed=tf.constant(1),
)
for text in result["text"].numpy():
    print(text.decode("utf-8"))

vectors = embed(text=tf.constant(["def main():", "A line of text."]))["embedding"]
print(vectors.shape)
```
"""
_SOURCE_README = """# An encoder-decoder as a SavedModel

{parameters} parameters, a vocabulary of {vocabulary} ids of {tokenizer}; weights of
{size}. Written by {versions}.
{needs}

## `generate`: what does the model write of a text?

| | name | type | meaning |
|---|---|---|---|
| in | `text` | string (B,) | bytes, of at most {most_source_tokens} tokens; at most {most_rows} rows |
| in | `max_length` | int32 () | tokens at which it stops; at most {most_tokens} |
| in | `temperature` | float32 () | 0: the most likely token each time; 1: as the model says |
| in | `top_p` | float32 () | in (0, 1]: draws from the most likely tokens that have this probability together |
| in | `seed` | int32 () | equal seeds give equal texts; row i draws the same whatever the other rows are |
| out | `text` | string (B,) | what is written, valid UTF-8; what is not is U+FFFD |
| out | `text_bytes` | string (B,) | the same, as it is |
| out | `num_tokens` | int32 (B,) | its tokens |
| out | `log_prob` | float32 (B,) | its log-probability and that of its end, in nats |

A setting out of range is an error. The first call of each size (rows, tokens and `max_length`, rounded up to 1, 2, 3,
4, 6, 8, 12, ...) compiles a program, which takes seconds.

## `score`: how likely is a target, given a text?

| | name | type | meaning |
|---|---|---|---|
| in | `text`, `target` | string (B,) | bytes |
| out | `nats` | float32 (B,) | negative logarithm of the probability of the target and its end |
| out | `num_bytes`, `num_tokens` | int32 (B,) | bytes of the target, tokens of it and its end |
| out | `bits_per_byte` | float32 (B,) | nats / ln 2 / num_bytes; 0 for an empty target |

## Example

```python
import tensorflow as tf

served = tf.saved_model.load("{name}").signatures
settings = {{"max_length": 60, "temperature": 0.0, "top_p": 1.0, "seed": 1}}
result = served["generate"](
    text=tf.constant(["A line of text."]), **{{name: tf.constant(value) for name, value in settings.items()}}
)
print(result["text"].numpy()[0].decode("utf-8"))

result = served["score"](text=tf.constant(["A line of text."]), target=tf.constant(["Another one."]))
print(result["bits_per_byte"].numpy())
```
"""
