"""The README.md in a SavedModel of bytes that are no text: of images and of sound."""

from typing import Any

from tf_sparse_attention.data import AudioCodec, ImageCodec
from tf_sparse_attention.export.readme import NEEDS, size_of, versions
from tf_sparse_attention.export.sampling_loop import MAX_ROWS, max_tokens_of
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel


def make_image_readme(model: LanguageModel, codec: ImageCodec, weights: Weights, name: str) -> str:
    """Returns the text; see `export_images`."""
    return _IMAGES.format(
        **_common(model, weights, name, "images", "bytes"),
        height=codec.height,
        width=codec.width,
        channels=codec.channels,
        length=codec.length,
        half=codec.height // 2,
        order="row by row" if codec.block_shape is None else f"in blocks of {codec.block_shape} pixels",
    )


def make_audio_readme(
    model: LanguageModel, codec: AudioCodec, weights: Weights, sequence_length: int, name: str
) -> str:
    """Returns the text; see `export_audio`."""
    most = max_tokens_of(model)
    return _AUDIO.format(
        **_common(model, weights, name, "sounds", "samples"),
        rate=codec.sample_rate,
        window=sequence_length,
        most=most,
        some=min(most, codec.sample_rate // 2),
    )


def _common(model: LanguageModel, weights: Weights, name: str, items: str, parts: str) -> dict[str, Any]:
    """Returns what both texts say; `items` are drawn, and consist of `parts`."""
    return {
        "name": name,
        "parameters": f"{model.count_params():,}",
        "blocks": model.backbone.num_layers,
        "size": size_of(weights),
        "written": f"Written by {versions()}.\n{NEEDS[False]}",
        "ahead": "" if model.backbone.causal_selection else _AHEAD.format(items=items),
        "most_rows": MAX_ROWS,
        "settings": _SETTINGS.format(items=items),
        "log_prob": _LOG_PROB.format(parts=parts),
    }


_AHEAD = "\nHeads of this model look ahead: the scores are no likelihood of the {items}.\n"
_SETTINGS = """| in | `temperature` | float32 () | 0: the most likely byte each time; 1: as the model says |
| in | `top_p` | float32 () | in (0, 1]: draws from the most likely bytes that have this probability together |
| in | `seed` | int32 () | equal seeds give equal {items}; row i draws the same whatever the other rows are |"""
_LOG_PROB = "| out | `log_prob` | float32 (B,) | log-probability of the {parts} that were drawn, in nats |"
_IMAGES = """# A model of images as a SavedModel

{parameters} parameters, {blocks} blocks; images of {height} rows, {width} columns and {channels} channels, a byte each,
{order}; weights of {size}. {written}

## `score`: how likely is an image?

| | name | type | meaning |
|---|---|---|---|
| in | `images` | uint8 (B, {height}, {width}, {channels}) | of any number |
| out | `bits_per_dim` | float32 (B,) | nats / ln 2 / {length}, the bytes of an image |
| out | `nats` | float32 (B,) | negative logarithm of the probability of the image |
{ahead}
## `generate`: what does the model draw?

| | name | type | meaning |
|---|---|---|---|
| in | `images` | uint8 (B, {height}, {width}, {channels}) | to complete, at most {most_rows}; any for whole images |
| in | `num_rows` | int32 () | their top rows that are given, from 0 (whole images are drawn) to {height} |
{settings}
| out | `drawn` | uint8 (B, {height}, {width}, {channels}) | the images |
{log_prob}

A setting out of range is an error. The first call of each size (images, and bytes that are given, rounded up to 1, 2,
3, 4, 6, 8, 12, ...) compiles a program, which takes seconds.

## Example

```python
import tensorflow as tf

served = tf.saved_model.load("{name}").signatures
images = tf.fill((2, {height}, {width}, {channels}), tf.constant(128, tf.uint8))  # in place of your own
print(served["score"](images=images)["bits_per_dim"].numpy())

settings = {{"num_rows": {half}, "temperature": 1.0, "top_p": 1.0, "seed": 1}}
result = served["generate"](images=images, **{{name: tf.constant(value) for name, value in settings.items()}})
print(result["drawn"].numpy().shape, result["log_prob"].numpy())
```
"""
_AUDIO = """# A model of sound as a SavedModel

{parameters} parameters, {blocks} blocks; sound of one channel and {rate} samples a second, which is coded as bytes of
mu-law, one a sample; weights of {size}. {written}

## `score`: how likely is a sound?

| | name | type | meaning |
|---|---|---|---|
| in | `samples` | int16 (B, T) | sounds, padded on the right with anything |
| in | `num_samples` | int32 (B,) | of each sound, from 0 to T |
| out | `bits_per_byte` | float32 (B,) | nats / ln 2 / num_samples; 0 for no samples |
| out | `nats` | float32 (B,) | negative logarithm of the probability of the bytes of the sound |

A sound of more than {window} samples is scored in consecutive windows of {window}, every sample once; each window
starts without context.
{ahead}
## `generate`: how may a sound go on?

| | name | type | meaning |
|---|---|---|---|
| in | `samples` | int16 (B, T) | what is given, padded on the right with anything; at most {most_rows} rows |
| in | `num_samples` | int32 (B,) | that are given of each row, from 0 (it is drawn from its beginning) to T |
| in | `max_length` | int32 () | samples of a row, those that are given included; at most {most} |
{settings}
| out | `drawn` | int16 (B, max_length) | the sounds; what is given is as near as a byte of mu-law comes |
{log_prob}

More samples than `max_length` and a setting out of range are errors. The first call of each size (rows, `max_length`
and samples that are given, rounded up to 1, 2, 3, 4, 6, 8, 12, ...) compiles a program, which takes seconds.

## Example

```python
import wave

import tensorflow as tf

served = tf.saved_model.load("{name}").signatures
sound = {{"samples": tf.zeros((1, {some}), tf.int16), "num_samples": tf.constant([{some}])}}  # in place of your own
print(served["score"](**sound)["bits_per_byte"].numpy())

sound["num_samples"] = tf.constant([{some} // 2])  # the first half goes on
settings = {{"max_length": {some}, "temperature": 1.0, "top_p": 1.0, "seed": 1}}
result = served["generate"](**sound, **{{name: tf.constant(value) for name, value in settings.items()}})
with wave.open("drawn.wav", "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate({rate})
    file.writeframes(result["drawn"][0].numpy().astype("<i2").tobytes())
print(result["log_prob"].numpy())
```
"""
