"""A small language model and calls of its SavedModel, shared by the tests of exports."""

import keras
import numpy as np
import tensorflow as tf

from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.export import export_language_model
from tf_sparse_attention.models import Backbone, LanguageModel

LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 6, "position": "rotary"}
ROUTING = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 4}
TEXTS = ["def main():", "", b"\xff\xc3 not UTF-8", "Ä long text: " + "abc äöü " * 9]
WINDOW = 16


def make_model(attention=(LOCAL,)):
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
    return LanguageModel(Backbone(258, attention=list(attention), seed=3, **sizes), tie_embeddings=True)


def export(model, path, **settings):
    return export_language_model(model, path, ByteTokenizer(), sequence_length=WINDOW, batch_size=3, **settings)


def score(served, texts):
    return {name: value.numpy() for name, value in served["score"](text=tf.constant(texts, tf.string)).items()}


def embed(served, texts):
    return {name: value.numpy() for name, value in served["embed"](text=tf.constant(texts, tf.string)).items()}


def generate(served, prompts, max_length=20, temperature=1.0, top_p=0.9, seed=5):
    result = served["generate"](
        prompt=tf.constant(prompts, tf.string),
        max_length=tf.constant(max_length),
        temperature=tf.constant(temperature),
        top_p=tf.constant(top_p),
        seed=tf.constant(seed),
    )
    return {name: value.numpy().tolist() for name, value in result.items()}


def nats_of(model, text):
    """Return the nats of a text from the logits of the model, window by window."""
    ids, nats = ByteTokenizer().tokenize(text), 0.0
    for begin in range(0, len(ids), WINDOW):
        window = ids[begin : begin + WINDOW]
        logits = keras.ops.convert_to_numpy(model(np.array([[0, *window[:-1]]], "int32")))[0].astype("float64")
        log_sum = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
        nats += (log_sum - logits[np.arange(len(window)), window]).sum()
    return nats


def embedding_of(model, text):
    """Return the mean of the last vectors of a text, window by window; 0 for an empty text."""
    ids = ByteTokenizer().tokenize(text)
    windows = [ids[begin : begin + WINDOW] for begin in range(0, len(ids), WINDOW)]
    vectors = [keras.ops.convert_to_numpy(model.backbone(np.array([[0, *window]])))[0, 1:] for window in windows]
    return np.concatenate(vectors).mean(0) if len(ids) else np.zeros(model.backbone.hidden_dim)
