"""A small language model and calls of its SavedModel, shared by the tests of exports."""

import keras
import tensorflow as tf

from tests import contracts
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.export import export_language_model
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator

LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 6, "position": "rotary"}
ROUTING = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 4}
TEXTS = ["def main():", "", b"\xff\xc3 not UTF-8", "Ä long text: " + "abc äöü " * 9]
WINDOW = 16


def make_model(attention=(LOCAL,), vocabulary_size=258, **options):
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
    backbone = Backbone(vocabulary_size, attention=list(attention), seed=3, **sizes, **options)
    return LanguageModel(backbone, tie_embeddings=True)


def make_byte_model(grid):
    """Return a model of images or audio, which generates without compilation."""
    model = make_model(vocabulary_size=257, embedding={"grid": grid})
    model._generator = Generator(model, run_eagerly=True)
    return model


def export(model, path, **settings):
    return export_language_model(model, path, ByteTokenizer(), sequence_length=WINDOW, batch_size=3, **settings)


def call(served, name, **inputs):
    """Return the outputs, arrays by name, of a signature for inputs that need not be tensors."""
    specs = served[name].structured_input_signature[1]
    given = {key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()}
    return {key: value.numpy() for key, value in served[name](**given).items()}


def generate(served, prompts, max_length=20, temperature=1.0, top_p=0.9, seed=5):
    settings = {"max_length": max_length, "temperature": temperature, "top_p": top_p, "seed": seed}
    return {name: value.tolist() for name, value in call(served, "generate", prompt=prompts, **settings).items()}


def nats_of(model, ids, window=WINDOW):
    """Return the nats of ids from the logits of the model, window by window."""
    parts = (ids[None, begin : begin + window] for begin in range(0, len(ids), window))
    return sum(contracts.nats_of(model, part).sum() for part in parts)


def nats_of_texts(model):
    return [nats_of(model, ByteTokenizer().tokenize(text)) for text in TEXTS]
