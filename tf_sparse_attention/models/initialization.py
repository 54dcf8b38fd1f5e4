"""Initial weights for deep models, by the depth of the model."""

import keras

SCALE = 0.125


def initialize_by_depth(model: keras.Model, seed: int | None = None) -> None:
    """Gives a language model the initial weights of the Sparse Transformer, under which very deep models train.

    Normal, with standard deviation 0.125 / sqrt(inputs of the kernel) for projections and feed-forward; those of the
    two kernels before a residual addition are divided by sqrt(2 num_layers). Embeddings: 0.125 / sqrt(D), of positions
    0.125 / sqrt(D axes). Zero for the kernel of the logits, unless it is the embedding, and for biases. Source: Child
    et al. 2019, "Generating Long Sequences with Sparse Transformers", section 5.2.

    Args:
        model: a `LanguageModel`; all other weights, such as norms and tables of relative positions, are unchanged.
        seed: integer. None: that of `keras.utils.set_random_seed`.

    Raises:
        ValueError: if `model` is no `LanguageModel`.

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
    """Returns the standard deviation of the initial values of a weight, 0 for zeros, None to leave it as it is."""
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
