"""A language model for tests of generation."""

import keras

from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator


def make_model(pattern, seed=3, vocabulary_size=258, scale=3.0, run_eagerly=False, **options):
    """Return a model of one layer, with weights far from the start, where all tokens are about as likely."""
    keras.utils.set_random_seed(seed)
    part = {"layer": "SparseAttention", "pattern": pattern, "num_heads": 2, "key_dim": 8, "position": "rotary"}
    model = LanguageModel(Backbone(vocabulary_size, 1, 16, [part], intermediate_dim=32, seed=seed, **options))
    for weight in model.trainable_weights:
        weight.assign(scale * weight if "kernel" in weight.path else weight)
    if run_eagerly:
        model._generator = Generator(model, run_eagerly)
    return model
