"""Language model: a backbone with an output layer for next-token logits; initial weights for deep models."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers import AdaptiveEmbedding, AdaptiveSoftmax
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.models.backbone import Backbone
from tf_sparse_attention.models.generation import Generation
from tf_sparse_attention.models.inputs import CheckedInputs
from tf_sparse_attention.models.metrics import nats_of
from tf_sparse_attention.models.model import Model, TargetsAsInputs, split_targets
from tf_sparse_attention.models.presets import PRESETS, preset_arguments
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.types import Config, Tensor

SCALE = 0.125  # of the initial weights of deep models
SOFTMAX = 100  # derived seed: the embedding has clusters of the same shapes, so its seeds must differ


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LanguageModel(CheckedInputs, Generation, TargetsAsInputs, Model):
    """Language model: logits for the token after each position.

    Logits at position t predict token t + 1 of the inputs. In training, inputs are the targets shifted right by one
    after id 0, as `tsa.data` returns them.

    If the embedding size differs from `hidden_dim`, a dense layer first projects the output of the backbone to the
    embedding size. Logits use the embedding matrix if `tie_embeddings` is True, otherwise a separate matrix.

    With an `AdaptiveEmbedding`, the output is an `AdaptiveSoftmax` with the same clusters, and logits are
    log-probabilities. Training with `language_model_loss()` and metrics of this library then evaluates each cluster of
    rare ids only for the targets in this cluster.

    Args:
        backbone: a `Backbone`.
        tie_embeddings: whether the output uses the embedding matrix. Default False.
        use_output_bias: whether logits have a bias. Default True.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int (B, T) token ids, or a dictionary as for `Backbone`, optionally with "targets", int (B, T).
        padding_mask, segment_ids, training: as for `Backbone`.

    Returns:
        Float32 logits (B, T, V); with "targets", their -log p in nats, (B, T). A float64 model returns float64.

    Raises:
        ValueError: if an argument is invalid, or `inputs` has missing or unknown keys.

    Example:
        >>> model = LanguageModel.from_preset("enwik8_local_cluster8k", vocabulary_size=258)
        >>> model.compile("adam", loss=language_model_loss(), metrics=[BitsPerByte()])
    """

    _model_arguments = ("backbone",)

    def __init__(
        self, backbone: Backbone, tie_embeddings: bool = False, use_output_bias: bool = True, **kwargs: Any
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # float ids would be rounded to half precision
        if not isinstance(backbone, Backbone) or backbone.vocabulary_size is None:
            raise ValueError(f"`backbone` must be a `Backbone` with a vocabulary. Received: backbone={backbone!r}.")
        checks.check_switch("tie_embeddings", tie_embeddings)
        checks.check_switch("use_output_bias", use_output_bias)
        if isinstance(backbone.embedding, AdaptiveEmbedding) and not use_output_bias:
            raise ValueError("`use_output_bias` must be True with an adaptive embedding. Received: False.")
        self.backbone = backbone
        self.supports_masking = True  # encoder outputs may have a Keras mask; the output has none
        self.tie_embeddings = tie_embeddings
        self.use_output_bias = use_output_bias
        self.to_embedding = None
        if backbone.embedding_dim != backbone.hidden_dim:
            self.to_embedding = keras.layers.Dense(
                backbone.embedding_dim, dtype=sublayer_policy(self, "to_embedding"), name="to_embedding"
            )
        self.to_vocabulary = None
        if self.is_adaptive:
            self.to_vocabulary = self._adaptive_softmax()
        elif not tie_embeddings:
            policy = sublayer_policy(self, "to_vocabulary")
            self.to_vocabulary = keras.layers.Dense(
                backbone.vocabulary_size, use_bias=use_output_bias, dtype=policy, name="to_vocabulary"
            )
        self.build((None, None))

    @classmethod
    def from_preset(
        cls,
        name: str,
        vocabulary_size: int,
        reproduce_reference: bool = False,
        tie_embeddings: bool = False,
        use_output_bias: bool = True,
        **overrides: Any,
    ) -> "LanguageModel":
        """Create a model of a published size with random weights.

        Args:
            name: one of `tf_sparse_attention.models.PRESETS` or `DECODER_PRESETS`.
            vocabulary_size: V.
            reproduce_reference: whether routed heads select and average as published ("top_k"), which is not causal.
                Default False: routed heads select "nearest".
            tie_embeddings, use_output_bias: as for the model.
            **overrides: arguments of `Backbone` that replace arguments of the preset. A dictionary for `attention`,
                `embedding`, `norm` or `dropout` changes only the options that it names.

        Raises:
            ValueError: if `name` is unknown, or `num_layers` is not greater than `num_local_layers` of `attention`.
        """
        arguments = preset_arguments(name, reproduce_reference, **overrides)
        backbone = Backbone(vocabulary_size, **arguments)
        model = cls(backbone, tie_embeddings, use_output_bias, dtype=overrides.get("dtype"))
        if PRESETS.get(name, {}).get("initialization") == "depth":
            initialize_by_depth(model, overrides.get("seed"))
        return model

    @property
    def vocabulary_size(self) -> int:  # type: ignore[override]  # a property, not an attribute
        """V, number of token ids."""
        return self.backbone.vocabulary_size

    @property
    def is_adaptive(self) -> bool:
        """Whether the embedding is an `AdaptiveEmbedding`, with smaller vectors for rarer words."""
        return isinstance(self.backbone.embedding, AdaptiveEmbedding)

    loss_from_targets = is_adaptive

    def _adaptive_softmax(self):
        embedding = self.backbone.embedding
        source = {"embedding": embedding}
        if not self.tie_embeddings:
            source = {name: getattr(embedding, name) for name in ("vocabulary_size", "cutoffs", "div_value")}
        seed = derived_seed(embedding.seed, SOFTMAX)
        return AdaptiveSoftmax(**source, seed=seed, dtype=self.dtype_policy, name="to_vocabulary")

    def build(self, input_shape: Any) -> None:
        if self.to_embedding is not None:
            self.to_embedding.build((None, None, self.backbone.hidden_dim))
        if self.to_vocabulary is not None:
            self.to_vocabulary.build((None, None, self.backbone.embedding_dim))
        elif self.use_output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(self.backbone.vocabulary_size,), initializer="zeros"
            )
        self.built = True

    def call(
        self,
        inputs: Tensor | dict[str, Tensor],
        padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        inputs, targets = split_targets(inputs)
        x = self.backbone(inputs, padding_mask=padding_mask, segment_ids=segment_ids, training=training)
        return self._outputs(x, targets)

    def _outputs(self, x, targets):
        return self.logits(x) if targets is None else self.nats(x, targets)

    def nats(self, x: Tensor, targets: Tensor) -> Tensor:
        """Compute -log p of the targets, int (B, T), for vectors (B, T, D) of the backbone: float32 (B, T)."""
        if self.to_vocabulary is None or not self.is_adaptive:
            return nats_of(targets, self.logits(x))
        return self.to_vocabulary.loss(x if self.to_embedding is None else self.to_embedding(x), targets)

    def init_memory(self, batch_size: int | Tensor, masked: bool = True) -> dict[str, Tensor]:
        """Create an empty segment memory; see `Backbone.init_memory`."""
        return self.backbone.init_memory(batch_size, masked)

    @without_autograph
    def forward_with_memory(
        self, inputs: Tensor | dict[str, Tensor], memory: dict[str, Tensor], training: bool | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the outputs of a call and the new segment memory; see `Backbone.forward_with_memory`."""
        inputs, targets = split_targets(inputs)
        x, memory = self.backbone.forward_with_memory(inputs, memory, training=training)
        return self._outputs(x, targets), memory

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Reason why the model cannot decode with a KV cache, or None."""
        return self.backbone.cache_unsupported_reason

    @without_autograph
    def init_cache(
        self,
        batch_size: int | Tensor,
        max_length: int | Tensor | None,
        memory: dict[str, Tensor] | None = None,
        positions_in_cache: bool = False,
        rewind: int = 0,
        dtype: str | None = None,
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
    ) -> dict[str, Any]:
        """Create the KV cache of empty sequences; see `Backbone.init_cache`."""
        encoded = encoder_sequence, encoder_padding_mask
        return self.backbone.init_cache(batch_size, max_length, memory, positions_in_cache, rewind, dtype, *encoded)

    @without_autograph
    def extend(
        self,
        inputs: Tensor | dict[str, Tensor],
        cache: dict[str, Any],
        mask: Tensor | None = None,
        index: int | Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the logits (B, q, V) for the next tokens, and add them to the cache; see `Backbone.extend`.

        Example:
            >>> cache = model.init_cache(batch_size=1, max_length=64, rewind=2)
            >>> logits, cache = model.extend(np.array([[0, 102, 103]]), cache)  # 0 starts a sequence
            >>> logits, cache = model.extend(np.array([[34, 112]]), cache)
            >>> cache = model.rewind(cache, lengths=4)  # without the last token
        """
        x, cache = self.backbone.extend(inputs, cache, mask, index)
        return self.logits(x), cache

    @without_autograph
    def prefill(
        self,
        inputs: Tensor | dict[str, Tensor],
        cache: dict[str, Any],
        mask: Tensor | None = None,
        chunk_size: int = 512,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Add a long prompt in chunks. Returns the logits (B, 1, V) after its last token; see `Backbone.prefill`.

        Example:
            >>> prompt = np.arange(60)[None]
            >>> logits, cache = model.prefill(prompt, model.init_cache(1, max_length=64), chunk_size=16)
        """
        x, cache = self.backbone.prefill(inputs, cache, mask, chunk_size)
        return self.logits(x), cache

    @without_autograph
    def rewind(self, cache: dict[str, Any], lengths: int | Tensor) -> dict[str, Any]:
        """Remove the last tokens of each row from the cache; see `Backbone.rewind`."""
        return self.backbone.rewind(cache, lengths)

    def logits(self, x: Tensor) -> Tensor:
        """Compute logits (..., V) for any vectors (..., D) of the backbone."""
        if self.to_embedding is not None:
            x = self.to_embedding(x)
        if self.to_vocabulary is not None:
            x = self.to_vocabulary(x)
        else:
            x = ops.matmul(x, ops.transpose(ops.cast(self._embeddings(), x.dtype)))
            x = x + ops.cast(self.output_bias, x.dtype) if self.use_output_bias else x
        # float32: half precision is not enough for the softmax over a large vocabulary.
        return x if keras.backend.standardize_dtype(x.dtype) == "float64" else ops.cast(x, "float32")

    def _embeddings(self):
        """Return the embedding matrix (V, D), dequantized if needed."""
        embedding = self.backbone.embedding
        if embedding.quantization_mode is None:
            return embedding.embeddings
        return embedding(ops.arange(self.backbone.vocabulary_size))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        sizes, targets = split_targets(input_shape)
        sizes = self.backbone.compute_output_shape(sizes)[:2]
        return (*sizes, self.backbone.vocabulary_size) if targets is None else sizes

    def get_config(self) -> Config:
        return self.base_config("tie_embeddings", "use_output_bias")


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
