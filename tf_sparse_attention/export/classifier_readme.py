"""The README.md in SavedModels of encoders with a head."""

import json
from collections.abc import Sequence

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.readme import NEEDS, size_of, versions
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import SpanAnswerer, TokenClassifier
from tf_sparse_attention.models.encoder_task import EncoderTask


def make_classifier_readme(
    model: EncoderTask, tokenizer: Tokenizer, weights: Weights, labels: Sequence[str], length: int, name: str
) -> str:
    """Returns the text; see `export_classifier` and `export_span_answerer`, which has no labels."""
    about = {
        "name": name,
        "parameters": f"{model.count_params():,}",
        "tokenizer": type(tokenizer).__name__,
        "needs": NEEDS[tokenizer.needs_tensorflow_text],
        "labels": json.dumps(list(labels), ensure_ascii=False),
        "classes": len(labels),
        "length": length,
        "size": size_of(weights),
        "versions": versions(),
    }
    if isinstance(model, SpanAnswerer):
        body = _ANSWER.format(most=model.max_answer_length, **about)
    else:
        body = (_TOKENS if isinstance(model, TokenClassifier) else _TEXTS).format(**about)
    return _HEAD.format(title="Answers" if isinstance(model, SpanAnswerer) else "A classifier", **about) + body


_HEAD = """# {title} as a SavedModel

{parameters} parameters, ids of `{tokenizer}`; weights of {size}. Written by {versions}.
{needs}
"""
_CLASSIFY = """
The labels, in the order of the classes: `{labels}`

## `classify`: which label does {what} have?

| | name | type | meaning |
|---|---|---|---|
| in | `text` | string (B,) | bytes; UTF-8 or not |
{rows}| out | `num_tokens` | int32 (B,) | tokens of the text that were read |
| out | `is_cut` | bool (B,) | whether it had more than fit into {{length}} ids, the start and the end of it included |

## Example

```python
import tensorflow as tf

classify = tf.saved_model.load("{{name}}").signatures["classify"]
result = classify(text=tf.constant(["def main():", "A line of text."]))
print(result["label"].numpy(), result["probabilities"].numpy())
```
"""
_TEXTS = _CLASSIFY.replace("{labels}", "{{labels}}").format(
    what="a text",
    rows="""| out | `label` | string (B,) | the likeliest label |
| out | `probabilities` | float32 (B, {classes}) | of each label |
""",
)
_TOKENS = _CLASSIFY.replace("{labels}", "{{labels}}").format(
    what="a token",
    rows="""| out | `label` | string (B, T) | the likeliest label of each token; empty after the last one |
| out | `probabilities` | float32 (B, T, {classes}) | of each label; zeros after the last token |
| out | `tokens` | string (B, T) | the text of each token by itself |
""",
)
_ANSWER = """
## `answer`: which part of a text answers a question?

| | name | type | meaning |
|---|---|---|---|
| in | `question` | string (B,) | at most {length} ids with its start and its end, and room for an end of the text |
| in | `text` | string (B,) | is cut where both together have more than {length} ids |
| out | `answer` | string (B,) | the likeliest span of the text, of at most {most} tokens; empty where there is none |
| out | `start` | int32 (B,) | its first token, counted in the text; -1 where there is none |
| out | `end` | int32 (B,) | its last token |
| out | `log_prob` | float32 (B,) | log-probability of start and end, in nats |
| out | `num_tokens` | int32 (B,) | tokens of the text that were read |
| out | `is_cut` | bool (B,) | whether the text was cut |

## Example

```python
import tensorflow as tf

answer = tf.saved_model.load("{name}").signatures["answer"]
result = answer(question=tf.constant(["Who came?"]), text=tf.constant(["The old man came."]))
print(result["answer"].numpy()[0].decode("utf-8"), result["log_prob"].numpy())
```
"""
