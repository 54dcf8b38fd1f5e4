"""Depth-dependent initial weights for deep models."""

import keras

SCALE = 0.125


def initialize_by_depth(model: keras.Model, seed: int | None = None) -> None:
    """Initialize the weights of a language model as in the Sparse Transformer, for very deep models.

    - Kernels of projections and feed-forward: normal, standard deviation 0.125 / sqrt(fan-in). Kernels before a
      residual addition are also divided by sqrt(2 `num_layers`).
    - Token embeddings, of size D: 0.125 / sqrt(D). Grid embeddings: 0.125 / sqrt(D * number of axes).
    - Biases and an untied logit kernel: zero.
    - All other weights, such as norms and tables of relative positions, do not change.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 5.2.

    Args:
        model: a `LanguageModel`.
        seed: integer. None: the seed of `keras.utils.set_random_seed`.

    Raises:
        ValueError: if `model` is not a `LanguageModel`.

    Example:
        >>> model = LanguageModel.from_preset("sparse_transformer_enwik8", vocabulary_size=258, num_layers=2)
        >>> initialize_by_depth(model, seed=0)
    """
    if not hasattr(model, "backbone"):
        raise ValueError(f"`model` must be a `LanguageModel`. Received: model={model!r}.")
    seeds = keras.random.SeedGenerator(seed)
    for weight in model.trainable_weights:
        stddev = _stddev(weight, model.backbone)
        if stddev is not None:
            weight.assign(keras.random.normal(weight.shape, stddev=stddev, dtype="float32", seed=seeds))


def _stddev(weight, backbone):
    """Return the standard deviation of the initial values of a weight, or None to keep the weight."""
    owner, name = ["", *weight.path.split("/")][-2:]
    sizes = tuple(weight.shape)
    if name == "bias":
        return 0.0
    if name == "embeddings":
        return SCALE * sizes[-1] ** -0.5
    if owner == "grid_embedding":
        return SCALE * (sizes[-1] * len(backbone.grid_embedding.grid)) ** -0.5
    if name != "kernel":
        return None
    if owner == "to_vocabulary":
        return 0.0
    inputs = sizes[0] * sizes[1] if owner == "attention_output" else sizes[0]
    residual = owner in ("attention_output", "output")
    return SCALE * inputs**-0.5 * ((2 * backbone.num_layers) ** -0.5 if residual else 1)
