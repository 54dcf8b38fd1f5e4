"""The README.md in a SavedModel of speech."""

import json
from collections.abc import Sequence

from tf_sparse_attention.data import LogMel
from tf_sparse_attention.export.readme import NEEDS, size_of, versions
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import SpeechRecognizer


def make_speech_readme(
    model: SpeechRecognizer, weights: Weights, labels: Sequence[str], separator: str, log_mel: LogMel | None, name: str
) -> str:
    """Returns the text; see `export_speech`."""
    settings = {} if log_mel is None else log_mel.get_config()
    about = {
        "name": name,
        "parameters": f"{model.count_params():,}",
        "blocks": model.encoder.num_layers,
        "features": model.num_features,
        "outputs": model.vocabulary_size + 1,
        "subsampling": model.subsampling,
        "labels": json.dumps(list(labels), ensure_ascii=False),
        "separator": json.dumps(separator),
        "size": size_of(weights),
        "versions": versions(),
        "needs": NEEDS[False],
        **settings,
    }
    parts = [_HEAD, _SOUND, _EXAMPLE, _SOUND_EXAMPLE] if settings else [_HEAD, _EXAMPLE]
    return "".join(part.format(**about) for part in parts) + "```\n"


_HEAD = """# A speech recognizer as a SavedModel

{parameters} parameters, {blocks} blocks; weights of {size}. Written by {versions}.
{needs}

The labels, that of id 1 first; id 0 is the blank, and {separator} is between two of a transcript:
`{labels}`

## `transcribe`: what do features say?

| | name | type | meaning |
|---|---|---|---|
| in | `features` | float32 (B, T, {features}) | recordings of any lengths, padded on the right; not normalized |
| in | `num_frames` | int32 (B,) | how many frames of each row are real, 1 to T |
| out | `text` | string (B,) | the likeliest label of each frame, without repeats and blanks |
| out | `num_labels` | int32 (B,) | labels of the text |
| out | `log_prob` | float32 (B,) | log-probability of that alignment, in nats |
| out | `log_probs` | float32 (B, T', {outputs}) | of the blank and the labels, T' = T / {subsampling}, rounded up |

Frames after the last real one are certainly blank.
"""
_SOUND = """
## `transcribe_sound`: what does a recording say?

| | name | type | meaning |
|---|---|---|---|
| in | `samples` | float32 (B, N) | in [-1, 1], {sample_rate} a second, padded on the right |
| in | `num_samples` | int32 (B,) | how many of each row are real, 1 to N |
| out | | | as of `transcribe` |

Features are the logarithms of {num_bands} mel bands from {lowest} to {highest} Hz, of windows of {window} s every
{hop} s, with pre-emphasis {pre_emphasis}. Nothing is resampled.
"""
_EXAMPLE = """
## Example

```python
import tensorflow as tf

served = tf.saved_model.load("{name}").signatures
features = tf.zeros((2, 100, {features}))  # in place of your own
result = served["transcribe"](features=features, num_frames=tf.constant([100, 60]))
print([text.decode("utf-8") for text in result["text"].numpy()], result["log_prob"].numpy())
"""
_SOUND_EXAMPLE = """
samples = tf.zeros((1, {sample_rate}))  # a second of silence
result = served["transcribe_sound"](samples=samples, num_samples=tf.constant([{sample_rate}]))
print([text.decode("utf-8") for text in result["text"].numpy()], result["log_prob"].numpy())
"""
