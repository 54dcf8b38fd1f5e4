"""Accuracy of a trained encoder after replacing dense by clustered attention (Vyas et al. 2020, section 4.3).

    python -m benchmarks.approximation --workdir=runs/dense --split=test

Evaluates the classifier of a run of `trainers/configs/classify.py:full` on a split: with its dense attention, and with
clustered and improved clustered attention of the same weights, without further training. Prints a table: accuracy,
macro F1, the fraction of texts with the same label as with dense attention, and the time of a compiled pass over all
texts, the faster of two. `--lengths=4096,16384` also measures random sequences of these lengths.

`benchmarks/passages.py` creates data for this benchmark; the commands are in docs/tasks.md.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tf_sparse_attention import layers
from tf_sparse_attention.models import Backbone, SequenceClassifier
from tf_sparse_attention.models.blocks import all_parts, class_name, map_parts

COLUMNS = "attention", "accuracy", "macro F1", "same as dense", "seconds"


def with_attention(model: SequenceClassifier, **arguments: Any) -> SequenceClassifier:
    """Return a classifier with the same weights and clustered attention instead of dense attention.

    Args:
        model: a `SequenceClassifier` on a `Backbone` with only `DenseAttention`.
        **arguments: additional arguments of `ClusteredAttention`, such as `num_clusters` and `top_k`.

    Raises:
        ValueError: If the classifier has other attention.
    """
    config = model.encoder.get_config()
    attention = config["attention"]["parts"] if isinstance(model.encoder, Backbone) else config["attention"]
    kinds = {class_name(part) for part in all_parts(attention)}
    if not isinstance(model.encoder, Backbone) or kinds != {"DenseAttention"}:
        raise ValueError(f"`model` must have a `Backbone` with only DenseAttention. Received: {sorted(kinds)}.")
    parts = map_parts(lambda part: {**part, "layer": "ClusteredAttention", **arguments}, attention)
    # Random initialization instead of zeros: the planes of the hash are not copied.
    encoder = Backbone(**{**config, "attention": parts, "seed": config["seed"] or 0})
    clustered = type(model)(encoder, **_head(model))
    for target, source in zip(_layers(clustered), _layers(model), strict=True):
        if isinstance(source, layers.AttentionLayer):
            target.copy_projections(source)
        else:
            target.set_weights(source.get_weights())
    return clustered


def _head(model):
    config = model.get_config()
    return {name: config[name] for name in ("num_classes", "pooling", "dropout", "dtype")}


def _layers(model) -> Iterator[keras.layers.Layer]:
    """Yield the layers with weights of a classifier, each weight once; an attention layer is yielded as a whole."""
    attention = [layer for layer in model._flatten_layers() if isinstance(layer, layers.AttentionLayer)]
    inside = {id(inner) for layer in attention for inner in layer._flatten_layers(include_self=False)}
    for layer in model._flatten_layers():
        own = layer.weights and not list(layer._flatten_layers(include_self=False))
        if layer in attention or (own and id(layer) not in inside):
            yield layer


def variants(model: SequenceClassifier, num_clusters: Sequence[int], top_k: int) -> Iterator[tuple[str, Any]]:
    """Yield names and classifiers: dense, clustered and improved clustered attention."""
    yield "dense", model
    for kind, options in (("clustered", {}), ("improved", {"top_k": top_k})):
        for count in num_clusters:
            yield f"{kind}, {count} clusters", with_attention(model, num_clusters=count, **options)


class Predictor:
    """Compiled classifier with time measurement.

    Args:
        model: a `SequenceClassifier`.
        num_repeats: number of timed passes over each batch.
    """

    def __init__(self, model: SequenceClassifier, num_repeats: int) -> None:
        self._run = _compiled(model)
        self._num_repeats = num_repeats

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the logits, (B, C), and the least seconds of one batch."""
        logits, times = np.asarray(self._run(ids, mask)), []
        for _ in range(self._num_repeats):
            begin = time.perf_counter()
            np.asarray(self._run(ids, mask))
            times.append(time.perf_counter() - begin)
        return logits, min(times)


def _compiled(model):
    def call(ids, mask):
        return model({"token_ids": ids, "padding_mask": mask}, training=False)

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(call)
    import tensorflow as tf

    return tf.function(call, jit_compile=True, autograph=False)


def score(model: SequenceClassifier, batches: Sequence[Any], num_repeats: int = 2) -> dict[str, Any]:
    """Return "predicted" and "classes", int (num_texts,), and "seconds" of one pass over the batches.

    Args:
        model: the classifier.
        batches: tuples (ids, mask, classes, weights).
        num_repeats: see `Predictor`.
    """
    predictor, seconds, predicted, true = Predictor(model, num_repeats), 0.0, [], []
    for ids, mask, classes, weights in batches:
        logits, taken = predictor(ids, mask)
        seconds += taken
        predicted.append(np.argmax(logits, axis=-1)[weights > 0])
        true.append(classes[weights > 0])
    return {"predicted": np.concatenate(predicted), "classes": np.concatenate(true), "seconds": seconds}


def rows_of_table(model: Any, batches: Sequence[Any], num_clusters: Sequence[int], top_k: int) -> Iterator[list[str]]:
    """Yield the rows of the table: strings in the order of `COLUMNS`."""
    from tf_sparse_attention.trainers.tasks.classify import class_scores

    dense = None
    for name, variant in variants(model, num_clusters, top_k):
        found = score(variant, batches)
        dense = found if dense is None else dense
        confusion = np.zeros([model.num_classes] * 2, int)
        np.add.at(confusion, (found["classes"], found["predicted"]), 1)
        scores = class_scores(0.0, confusion)
        same = np.mean(found["predicted"] == dense["predicted"])
        yield [name, f"{scores['accuracy']:.4f}", f"{scores['macro_f1']:.4f}", f"{same:.4f}", f"{found['seconds']:.2f}"]


def times_of_lengths(
    model: Any, lengths: Sequence[int], num_clusters: Sequence[int], top_k: int
) -> Iterator[list[str]]:
    """Yield the name of each variant and its seconds for one random sequence of each length."""
    for name, variant in variants(model, num_clusters, top_k):
        predictor, times = Predictor(variant, 2), []
        for length in lengths:
            ids = np.random.default_rng(0).integers(2, model.vocabulary_size, (1, length)).astype("int32")
            times.append(f"{predictor(ids, np.ones((1, length), bool))[1]:.3f}")
        yield [name, *times]


def print_table(head: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Print rows of a Markdown table as they arrive."""
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, help="run directory of classify.py:full")
    parser.add_argument("--split", default="test")
    parser.add_argument("--clusters", default="25,100", help="numbers of clusters")
    parser.add_argument("--top_k", type=int, default=32, help="`top_k` of improved clustered attention")
    parser.add_argument("--lengths", default="", help="lengths of additional random sequences to time")
    arguments = parser.parse_args()
    from tf_sparse_attention.trainers.shared import workdir
    from tf_sparse_attention.trainers.tasks import registry

    task, model = registry.load_task(arguments.workdir), workdir.load_model(arguments.workdir)
    buckets = task.open_buckets(arguments.split)
    batches = [
        (inputs["token_ids"], inputs["padding_mask"], classes, weights)
        for inputs, classes, weights in buckets.evaluation_batches().dataset()
    ]
    clusters = [int(count) for count in arguments.clusters.split(",")]
    print_table(COLUMNS, rows_of_table(model, batches, clusters, arguments.top_k))
    if arguments.lengths:
        lengths = [int(length) for length in arguments.lengths.split(",")]
        head = ["attention", *(f"{length} tokens, seconds" for length in lengths)]
        print_table(head, times_of_lengths(model, lengths, clusters, arguments.top_k))


if __name__ == "__main__":
    main()
