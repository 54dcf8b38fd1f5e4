"""Images of a few bytes, with a configuration and a generator."""

import numpy as np

from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.configs import images

SHAPE = (2, 2, 3)


def make_arrays():
    """Return images by split, uint8 (N, *SHAPE)."""
    random, counts = np.random.default_rng(0), {"train": 12, "validation": 3, "test": 5}
    return {name: random.integers(256, size=(count, *SHAPE), dtype=np.uint8) for name, count in counts.items()}


def make_config(variant="local"):
    """Return a configuration with one layer for these images, without `config.data.path`."""
    config = images.get_config(variant)
    config.data.update(image_shape=(), sequence_length=12, batch_size=2)
    config.model.update(num_layers=1, num_local_layers=0, hidden_dim=16, intermediate_dim=16, grid=list(SHAPE))
    small = {"window": 8} if variant == "local" else {"width": 6, "height": 2, "block_shape": (1, 3)}
    config.model.attention = [{**config.model.attention[0], "num_heads": 2, "key_dim": 8, **small}]
    config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2, illustrate=False)
    config.train.update(deterministic=False, jit_compile=False)
    return config


def generate_eagerly(model):
    """Return a model that generates without compilation, which takes longer than a few bytes."""
    model._generator = Generator(model, run_eagerly=True)
    return model
