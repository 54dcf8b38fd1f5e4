"""SavedModels that score and continue text wherever TensorFlow is, without this library."""

import math
import os
import pathlib
import shutil
import tempfile

import keras
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.generation import bucket_length, generate, row_keys, sample
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.generation import decoder_of
from tf_sparse_attention.version import __version__

MOST_TOKENS = 2**16  # in a row of `generate`
MOST_ROWS = 2**12


def export_saved_model(model, path, tokenizer, sequence_length=1024, batch_size=8, jit_compile=True):
    """Writes a SavedModel with the signatures `score` and `generate`, text in and text out.

    It runs where TensorFlow is installed, without this library and, unless the tokenizer is SentencePiece or WordPiece,
    without tensorflow-text.
    A README.md inside says what goes in and what comes out, with an example.

    - `score`: text, string (B,) -> bits_per_byte and nats, float32 (B,), and num_bytes, int32 (B,). Nothing is cut off:
      a text of more than `sequence_length` tokens is scored in consecutive windows, every token exactly once. As in
      `tf_sparse_attention.data.evaluation_batches`, a window starts without context; unlike there, no end of the
      document is scored, since a text sent here may be a piece of one. Empty text has 0 nats and 0 bits per byte.
    - `generate`: prompt, string (B,), max_length (tokens, prompt included), temperature (0: the most likely token each
      time), top_p and seed, scalars -> text and text_bytes, string (B,): each prompt with its continuation up to the
      end of the document, in `text` as valid UTF-8 with U+FFFD for what is not, in `text_bytes` as it is. Row i of a
      seed draws the same in every batch, and the same as `tf_sparse_attention.models.generation.generate_ids`. A
      prompt of more than `max_length` tokens and a setting out of range are errors.

    Texts and prompts are bytes, valid UTF-8 or not. The loop of `generate` is compiled by XLA for each of a few sizes
    (`bucket_length`) when it is first needed, which takes some seconds.

    Args:
        model: `LanguageModel`, on the TensorFlow backend.
        path: folder to write, on a local disk. It must not exist, or be empty, or hold an earlier export, which is
            replaced: whole or not at all.
        tokenizer: the tokenizer the model was trained with.
        sequence_length: most tokens in a window of `score`; best the length the model was trained at. Default 1024.
        batch_size: most windows that `score` computes at once. Default 8.
        jit_compile: whether the loop of `generate` is compiled. Default True; False is for servers without XLA.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: on another backend, for a model or tokenizer that does not fit, or a path that must not be written.

    Example:
        >>> export_saved_model(model, "saved_model", ByteTokenizer(), sequence_length=1024)
        >>> served = tf.saved_model.load("saved_model")
        >>> served.signatures["score"](text=tf.constant(["def main():"]))["bits_per_byte"]
    """
    _check_model(model, tokenizer)
    checks.check_count("sequence_length", sequence_length)
    checks.check_count("batch_size", batch_size)
    path = _checked_path(path)
    # A plain module: loading it needs no class of Keras or of this library. TensorFlow saves the variables that it
    # finds in attributes, among them the tables of a tokenizer.
    served = tf.Module(name="language_model")
    served.weights = [variable.value for variable in model.variables]
    served.tokenizer = tokenizer.trackable
    served.score = _score_function(model, tokenizer, sequence_length, batch_size)
    served.generate = _generate_function(model, tokenizer, jit_compile)
    _write(served, path, _readme(model, tokenizer, sequence_length, path.name))
    return path


def _score_function(model, tokenizer, sequence_length, batch_size):
    def window_nats(values, width, begin, end):
        places = begin[:, None] + tf.range(width)
        real = places < end[:, None]
        targets = tf.where(real, tf.gather(values, tf.where(real, places, 0)), 0)
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        logits = model({"token_ids": tf.where(real, inputs, 0), "padding_mask": real}, training=False)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(tf.where(real, tf.cast(nats, tf.float64), 0), axis=1)

    def score(text):
        ids = tokenizer.tokenize(text)
        # One more, so that there is something to read for padding even if all texts are empty.
        values = tf.concat([ids.flat_values, [0]], axis=0)
        rows, begin, end = _windows(ids, sequence_length)
        width = tf.reduce_max(tf.concat([end - begin, [1]], axis=0))
        size = tf.clip_by_value(tf.size(rows), 1, batch_size)
        batches = [_in_batches(bounds, size) for bounds in (begin, end)]
        by_window = tf.map_fn(
            lambda bounds: window_nats(values, width, *bounds),
            batches,
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec((None,), tf.float64),
        )
        by_window = tf.reshape(by_window, (-1,))[: tf.size(rows)]
        nats = tf.math.unsorted_segment_sum(by_window, rows, tf.size(text))
        num_bytes = tf.strings.length(text, unit="BYTE")
        bits_per_byte = tf.math.divide_no_nan(nats, math.log(2) * tf.cast(num_bytes, tf.float64))
        nats, bits_per_byte = tf.cast(nats, tf.float32), tf.cast(bits_per_byte, tf.float32)
        return {"bits_per_byte": bits_per_byte, "nats": nats, "num_bytes": num_bytes}

    return tf.function(score, input_signature=[tf.TensorSpec((None,), tf.string, "text")], autograph=False)


def _windows(ids, length):
    """Returns row, begin and end (in the flat ids) of each window: int32 (num_windows,) three times."""
    starts, limits = tf.cast(ids.row_starts(), tf.int32), tf.cast(ids.row_limits(), tf.int32)
    counts = (limits - starts + length - 1) // length
    rows = tf.repeat(tf.range(tf.size(counts)), counts)
    number = tf.range(tf.size(rows)) - tf.gather(tf.cumsum(counts, exclusive=True), rows)
    begin = tf.gather(starts, rows) + number * length
    return rows, begin, tf.minimum(begin + length, tf.gather(limits, rows))


def _in_batches(values, size):
    """Cuts (num_windows,) into (num_batches, size), at least one batch, filled up with zeros: empty windows."""
    missing = -tf.size(values) % size
    missing = tf.where(tf.size(values) > 0, missing, size)
    return tf.reshape(tf.pad(values, [[0, missing]]), (-1, size))


def _generate_function(model, tokenizer, jit_compile):
    decoder = decoder_of(model)

    # The text operations stay outside, since XLA knows no strings. Sizes are unknown here and fixed in each call.
    @tf.function(jit_compile=jit_compile, autograph=False)
    def loop(prompt_ids, prompt_lengths, limits, keys, temperature, top_p):
        def sampler(logits, keys):
            return sample(logits, keys, temperature, top_p=top_p)

        prompts, state = (prompt_ids, prompt_lengths), decoder.start(prompt_ids, prompt_lengths)
        stop_id, start_id = tokenizer.end_id, tokenizer.start_id
        return generate(decoder.step, *prompts, limits, sampler, keys, stop_id, start_id, state)[0]

    def continue_text(prompt, max_length, temperature, top_p, seed):
        ids = tokenizer.tokenize(prompt)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        # By itself an assertion holds up nothing, and the loop would be compiled for sizes that are refused.
        with tf.control_dependencies(_assertions(lengths, max_length, temperature, top_p)):
            lengths = tf.identity(lengths)
        num_rows, length = _bucket(tf.size(prompt), 1, MOST_ROWS), _bucket(max_length, 64, MOST_TOKENS)
        # Rows that only fill up the batch are finished from the start.
        filled = [[0, num_rows - tf.size(prompt)]]
        token_ids = loop(
            tf.pad(ids.to_tensor(shape=tf.stack([-1, length])), [*filled, [0, 0]]),
            tf.pad(lengths, filled),
            tf.pad(tf.fill(tf.shape(lengths), max_length), filled),
            row_keys(seed, num_rows),
            temperature,
            top_p,
        )
        text = tokenizer.detokenize(token_ids[: tf.size(prompt)])
        return {"text": tf.strings.unicode_transcode(text, "UTF-8", "UTF-8"), "text_bytes": text}

    scalars = {"max_length": tf.int32, "temperature": tf.float32, "top_p": tf.float32, "seed": tf.int32}
    signature = [tf.TensorSpec((), dtype, name) for name, dtype in scalars.items()]
    signature.insert(0, tf.TensorSpec((None,), tf.string, "prompt"))
    return tf.function(continue_text, input_signature=signature, autograph=False)


def _assertions(lengths, max_length, temperature, top_p):
    longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
    conditions = (
        (max_length >= longest, "`max_length` must be at least 1 and the tokens of each prompt.", max_length),
        (max_length <= MOST_TOKENS, f"`max_length` must be at most {MOST_TOKENS}.", max_length),
        (tf.size(lengths) <= MOST_ROWS, f"`prompt` must have at most {MOST_ROWS} rows.", tf.size(lengths)),
        ((temperature >= 0) & (temperature < math.inf), "`temperature` must be a number of at least 0.", temperature),
        ((top_p > 0) & (top_p <= 1), "`top_p` must be a number in (0, 1].", top_p),
    )
    return [tf.debugging.Assert(right, [f"{message} Received:", value]) for right, message, value in conditions]


def _bucket(number, smallest, largest):
    """Returns, in a graph, the least size of `bucket_length` that is no less than `number`."""
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(bucket_length(sizes[-1] + 1, smallest))
    return tf.gather(sizes, tf.minimum(tf.searchsorted(sizes, [number])[0], len(sizes) - 1))


def _readme(model, tokenizer, sequence_length, name):
    return _README.format(
        name=name,
        parameters=f"{model.count_params():,}",
        blocks=model.backbone.num_layers,
        vocabulary=model.backbone.vocabulary_size,
        tokenizer=type(tokenizer).__name__,
        needs=_NEEDS[tokenizer.needs_tensorflow_text],
        window=sequence_length,
        most_tokens=MOST_TOKENS,
        most_rows=MOST_ROWS,
        versions=f"tf_sparse_attention {__version__}, Keras {keras.__version__}, TensorFlow {tf.__version__}",
    )


_NEEDS = {
    False: "To run it TensorFlow is enough; the library that wrote it is not needed.",
    True: "To run it TensorFlow and tensorflow-text are needed (`import tensorflow_text` before it is loaded); the "
    "library that wrote it is not.",
}
_README = """# A language model as a SavedModel

{parameters} parameters, {blocks} blocks, a vocabulary of {vocabulary} ids of `{tokenizer}`. Written by {versions}.
{needs}

## `score`: how likely is a text?

| | name | type | meaning |
|---|---|---|---|
| in | `text` | string (B,) | bytes; UTF-8 or not, of any length |
| out | `nats` | float32 (B,) | negative logarithm of the probability of the text |
| out | `num_bytes` | int32 (B,) | bytes of the text |
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

A row ends with the document or at `max_length`. A longer prompt and a setting out of range are errors. The first call
of each size (rows and `max_length`, rounded up to 1, 2, 3, 4, 6, 8, 12, ...) compiles a program, which takes seconds.

## Example

```python
import tensorflow as tf

served = tf.saved_model.load("{name}")
score, generate = served.signatures["score"], served.signatures["generate"]

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
```
"""


def _check_model(model, tokenizer):
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel can be written on the TensorFlow backend alone. Save the model with "
            "`model.save('model.keras')`, and in a process with KERAS_BACKEND=tensorflow load it with "
            "`keras.models.load_model` and export it. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`model` must be a `LanguageModel`. Received: model={model!r}.")
    if tokenizer.vocabulary_size > model.backbone.vocabulary_size:
        raise ValueError(
            "`tokenizer` must have no more ids than the model. Received: a tokenizer with "
            f"{tokenizer.vocabulary_size} and a model with {model.backbone.vocabulary_size}."
        )


def _checked_path(path):
    if "://" in os.fspath(path):
        raise ValueError(f"`path` must be on a local disk; copy the folder from there. Received: path={path}.")
    path = pathlib.Path(path).expanduser()
    if path.exists() and not (path.is_dir() and ((path / "saved_model.pb").exists() or not any(path.iterdir()))):
        raise ValueError(f"`path` must be new, or a folder that is empty or holds a SavedModel. Received: path={path}.")
    return path


def _write(served, path, readme):
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.incomplete-", dir=path.parent))
    try:
        signatures = {"score": served.score, "generate": served.generate}
        tf.saved_model.save(served, os.fspath(beside / "new"), signatures)
        (beside / "new" / "README.md").write_text(readme, encoding="utf-8")
        if path.exists():
            os.rename(path, beside / "old")
        os.rename(beside / "new", path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
