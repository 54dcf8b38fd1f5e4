"""The first layers of a backbone: from token ids, or features, to the inputs of its first block."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import layers
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.layers.parts.call_inputs import token_mask, zero_padding
from tf_sparse_attention.models.backbone_options import DropoutOptions, EmbeddingOptions
from tf_sparse_attention.models.token_ids import as_token_ids
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.types import Tensor


class BackboneInputs:
    """Mixin of `Backbone`: embedding of tokens and positions, and the projection to `hidden_dim`."""

    vocabulary_size: int
    hidden_dim: int
    dtype_policy: Any
    embedding: Any

    def _make_inputs(self, embedding: EmbeddingOptions, dropout: DropoutOptions, seed: int | None) -> None:
        self.embedding_dim: int = self.hidden_dim if embedding.dim is None else embedding.dim
        self._embedding_dropout, self._token_dropout = dropout.embedding, dropout.tokens
        self.embedding = None
        if self.vocabulary_size is not None:
            self.embedding = self._make_embedding(embedding, derived_seed(seed, 0, 0))
        self.grid_embedding = self.embedding_projection = self.sinusoidal_embedding = None
        common = {"dtype": self.dtype_policy}
        if embedding.grid is not None:
            self.grid_embedding = layers.GridEmbedding(
                embedding.grid, seed=derived_seed(seed, 0, 1), name="grid_embedding", **common
            )
        if embedding.dim is not None:
            policy = sublayer_policy(self, "projection")
            self.embedding_projection = keras.layers.Dense(self.hidden_dim, dtype=policy, name="projection")
        if embedding.sinusoidal:
            self.sinusoidal_embedding = layers.SinusoidalEmbedding(name="sinusoidal_embedding", **common)
        self._seeds = SeedGenerator(seed) if dropout.embedding or dropout.tokens else None

    def _make_embedding(self, options: EmbeddingOptions, seed: int | None) -> keras.layers.Layer:
        common = {"dtype": sublayer_policy(self, "embedding"), "name": "embedding"}
        vocabulary_size, size = self.vocabulary_size, self.embedding_dim
        if options.cutoffs is not None:
            clusters: dict[str, Any] = {"cutoffs": options.cutoffs}
            clusters |= {} if options.div_value is None else {"div_value": options.div_value}
            return layers.AdaptiveEmbedding(vocabulary_size, size, **clusters, seed=seed, **common)
        start = keras.initializers.RandomNormal(stddev=size**-0.5, seed=seed)
        return keras.layers.Embedding(vocabulary_size, size, embeddings_initializer=start, **common)

    def _build_inputs(self) -> None:
        if self.embedding is not None:
            self.embedding.build((None, None))
        for layer in (self.embedding_projection, self.grid_embedding):
            if layer is not None:
                layer.build((None, None, self.embedding_dim))

    def as_inputs(self, name: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns token ids (B, T) as integers, or features (B, T, F) in the compute dtype, zeros in padding.

        Args:
            name: of the argument, for messages.
            x: what the model reads.
            mask: bool (B, T), False for padding. None: no padding.

        Raises:
            ValueError: for anything else, and for ids beyond the vocabulary where they can be seen.
        """
        shape = tuple(x.shape) if hasattr(x, "shape") else None
        found = type(x).__name__ if shape is None else f"shape {shape}"
        if self.vocabulary_size is not None:
            if shape is None or len(shape) != 2:
                raise ValueError(f"`{name}` must be token ids of shape (batch, positions). Received: {found}.")
            return as_token_ids(name, x, self.vocabulary_size)
        if shape is None or len(shape) != 3 or shape[2] != self.embedding_dim:
            raise ValueError(
                f"`{name}` must be features of shape (batch, positions, {self.embedding_dim}), of a backbone without "
                f"a vocabulary. Received: {found}."
            )
        x = ops.cast(x, self.compute_dtype)
        return zero_padding(x, token_mask("padding_mask", mask, x))

    def embed(self, x: Tensor, training: bool | None = None, positions: Tensor | None = None) -> Tensor:
        """Returns the inputs of the first block, float (B, T, D).

        Args:
            x: token ids, int (B, T), or without a vocabulary features, float (B, T, F).
            training: whether to drop.
            positions: int (B, T), those of the tokens. None: from 0 on.
        """
        if self.embedding is not None:
            if training and self._token_dropout:
                keep = keras.random.uniform(ops.shape(x), seed=self._seeds) >= self._token_dropout
                x = ops.where(keep, x, 0)
            x = self.embedding(x)
        if self.grid_embedding is not None:
            x = self.grid_embedding(x, positions=positions)
        if training and self._embedding_dropout:
            x = keras.random.dropout(x, self._embedding_dropout, seed=self._seeds)
        if self.embedding_projection is not None:
            x = self.embedding_projection(x)
        return x if self.sinusoidal_embedding is None else self.sinusoidal_embedding(x, positions=positions)
