"""The README.md in a SavedModel of images."""

from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.export.generation import MAX_ROWS
from tf_sparse_attention.export.readme import NEEDS, size_of, versions
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel


def make_image_readme(model: LanguageModel, codec: ImageCodec, weights: Weights, name: str) -> str:
    """Returns the text; see `export_images`."""
    return _README.format(
        name=name,
        parameters=f"{model.count_params():,}",
        blocks=model.backbone.num_layers,
        height=codec.height,
        width=codec.width,
        channels=codec.channels,
        length=codec.length,
        half=codec.height // 2,
        order="row by row" if codec.block_shape is None else f"in blocks of {codec.block_shape} pixels",
        ahead="" if model.backbone.causal_selection else _AHEAD,
        size=size_of(weights),
        most_rows=MAX_ROWS,
        versions=versions(),
        needs=NEEDS[False],
    )


_AHEAD = "Heads of this model look ahead: the scores are no likelihood of the images."
_README = """# A model of images as a SavedModel

{parameters} parameters, {blocks} blocks; images of {height} rows, {width} columns and {channels} channels, a byte each,
{order}; weights of {size}. Written by {versions}.
{needs}

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
| in | `temperature` | float32 () | 0: the most likely byte each time; 1: as the model says |
| in | `top_p` | float32 () | in (0, 1]: draws from the most likely bytes that have this probability together |
| in | `seed` | int32 () | equal seeds give equal images; row i draws the same whatever the other rows are |
| out | `drawn` | uint8 (B, {height}, {width}, {channels}) | the images |
| out | `log_prob` | float32 (B,) | log-probability of the bytes that were drawn, in nats |

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
