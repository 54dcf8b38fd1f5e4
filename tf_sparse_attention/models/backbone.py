"""The Transformer without its task: from token ids, or features, to vectors."""

import math
from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.blocks.transformer_block import is_before, make_norm
from tf_sparse_attention.layers.parts.call_inputs import as_integers
from tf_sparse_attention.models.attention_parts import serialize_attention
from tf_sparse_attention.models.backbone_arguments import (
    arguments_of_block,
    check_arguments,
    extra_mask_names_of,
    input_names_of,
    unpack,
)
from tf_sparse_attention.models.backbone_cache import BackboneCache
from tf_sparse_attention.models.backbone_inputs import BackboneInputs
from tf_sparse_attention.models.blocks import make_blocks
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.models.segment_memory import SegmentMemory, check_blocks, empty_memory
from tf_sparse_attention.models.token_ids import CheckedInputs
from tf_sparse_attention.types import Config, Tensor

ARGUMENTS_OF_BLOCKS: tuple[str, ...] = (
    "attention",
    "num_layers",
    "num_local_layers",
    "intermediate_dim",
    "activation",
    "activation_dropout",
)
ARGUMENTS_OF_BLOCKS += ("norm", "causal", "dropout", "layer_norm_epsilon", "remat", "seed", "cross_attention")
ARGUMENTS_OF_BLOCKS += ("reproduce_reference",)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Backbone(CheckedInputs, BackboneInputs, BackboneCache, Model):
    """Embedding, Transformer blocks with heads of any patterns, and a final norm.

    One class is encoder (`causal=False`) and decoder (with `cross_attention`, that reads what an encoder returned).

    Args:
        vocabulary_size: V, number of token ids. None: inputs are no ids but features, float (B, T, F) with F
            `embedding_dim`, such as frames of sound or tokens that another model has embedded.
        num_layers: number of blocks.
        hidden_dim: D, channels of the residual stream.
        attention: the parts of each block's attention, in the order of their heads: a list of dictionaries, each with
            the name of a class of `tf_sparse_attention.layers` under "layer" and its arguments. A part may also be an
            attention layer, so one of a class of your own, or what `keras.saving.serialize_keras_object` makes of it:
            each block has a new layer of its config, which computes in the dtype of the model. Blocks that differ: a
            list of such lists, one for each.
        intermediate_dim: size inside the feed-forward. None: blocks have none.
        activation: of the feed-forward, see `FeedForward`. Default "gelu".
        num_local_layers: number of first blocks in which the part `LocalAttention` has the heads of all parts, fewer
            than `num_layers`. Default 0, and 0 where `attention` has a list for each block.
        embedding: dictionary with some of "cutoffs" and "div_value", of an `AdaptiveEmbedding` for ids that go by
            frequency, "grid", the shape of a `GridEmbedding` of positions that is added, and "sinusoidal", True to
            add a `SinusoidalEmbedding` to the inputs of the first block. None: one table.
        embedding_dim: size of the embedding, or of features, from which a dense layer leads to `hidden_dim`. None:
            `hidden_dim`, and no such layer.
        norm: "pre" or "pre_and_post" (and a norm after the last block) or "post", or one of these with "_rms" behind,
            see `TransformerBlock`. Default "pre".
        causal: whether later tokens are hidden. Default True.
        dropout: rate on the result of each sublayer. Default 0; so are the next three.
        embedding_dropout: rate on the embedding.
        activation_dropout: rate inside the feed-forward.
        token_dropout: rate at which input ids are replaced by id 0 in training.
        layer_norm_epsilon: of the norms, default 1e-6.
        memory_length: L, positions of the segment memory, the block inputs before a segment of a long text that
            `forward_with_memory` reads as further keys; the patterns of all parts must have `takes_memory`. Default 0:
            no memory.
        remat: whether the backward pass computes the blocks again: less memory, more time. Default False.
        cross_attention: the parts, as in `attention`, of each block's attention to another sequence, vectors of size
            `hidden_dim` that an encoder returned. None: blocks have none.
        reproduce_reference: whether padding is hidden from attention alone, as in the published Routing Transformer,
            where it takes places in clusters: see `TransformerBlock`. Default False.
        seed: integer for dropout, the initial embedding and the initial centroids. All other weights, and without it
            these too, follow `keras.utils.set_random_seed`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int (B, T) token ids, or a dictionary with "token_ids" and, if wanted, "padding_mask", "segment_ids" and
            masks that only some layers take, such as "global_mask" of a `GlobalLocalAttention`. Without a vocabulary
            float (B, T, F), or "features" in place of "token_ids". With `cross_attention` a dictionary that also has
            "encoder_sequence", float (B, S, D), and may have "encoder_padding_mask", bool (B, S), and
            "encoder_segment_ids", int (B, S), the documents of the encoder's tokens.
        padding_mask: bool (B, T), False for padding.
        segment_ids: int (B, T), the document of each token of a packed batch.
        training: whether to apply dropout and update centroids.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: for a wrong argument.

    Example:
        >>> import numpy as np
        >>> backbone = Backbone(
        ...     vocabulary_size=258,
        ...     num_layers=2,
        ...     hidden_dim=64,
        ...     attention=[{"layer": "LocalAttention", "num_heads": 4, "key_dim": 16, "window": 128}],
        ...     intermediate_dim=256,
        ... )
        >>> tuple(backbone(np.zeros((1, 300), "int32")).shape)
        (1, 300, 64)
    """

    def __init__(
        self,
        vocabulary_size: int | None,
        num_layers: int,
        hidden_dim: int,
        attention: Sequence[Any],
        intermediate_dim: int | None = None,
        activation: str = "gelu",
        num_local_layers: int = 0,
        embedding: dict[str, Any] | None = None,
        embedding_dim: int | None = None,
        norm: str = "pre",
        causal: bool = True,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        token_dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-6,
        memory_length: int = 0,
        remat: bool = False,
        seed: int | None = None,
        cross_attention: Sequence[Any] | None = None,
        reproduce_reference: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # ids given as floats would be rounded to half precision
        for name in ("attention", "cross_attention"):
            arguments[name] = serialize_attention(arguments[name])
        if seed is not None:
            checks.check_seed(seed)
        check_arguments(arguments)
        self._arguments = arguments
        self.vocabulary_size = vocabulary_size  # type: ignore[assignment]  # None of features
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.memory_length = memory_length
        self._make_inputs()
        self.supports_masking = True  # of what an encoder returns, and of none that Keras would make
        self.blocks = make_blocks(dtype=self.dtype_policy, **{name: arguments[name] for name in ARGUMENTS_OF_BLOCKS})
        check_blocks(self.blocks, memory_length)
        self.final_norm = None
        if is_before(norm):
            self.final_norm = make_norm(norm, layer_norm_epsilon, "final_norm", self.dtype_policy)
        self.build((None, None))

    @property
    def causal(self) -> bool:
        """Whether later tokens are hidden."""
        return self._arguments["causal"]

    @property
    def reads_encoder(self) -> bool:
        """Whether the blocks have cross-attention."""
        return self._arguments["cross_attention"] is not None

    @property
    def causal_selection(self) -> bool:
        """Whether the choice of tokens that a head sees is causal too, independent of later tokens."""
        return all(block.causal_selection for block in self.blocks)

    @property
    def extra_mask_names(self) -> tuple[str, ...]:
        """Names of masks that only some layers take, such as "global_mask"."""
        return extra_mask_names_of(self.blocks)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The keys that dictionaries of inputs may have, the first of which they must have."""
        return input_names_of(self.blocks, self.vocabulary_size is not None)

    @property
    def max_length(self) -> int | None:
        """The most tokens that a sequence can have; None: any number."""
        return None if self.grid_embedding is None else math.prod(self.grid_embedding.grid)

    def build(self, input_shape: Any) -> None:
        hidden = (None, None, self.hidden_dim)
        self._build_inputs()
        across = {"encoder_sequence_shape": hidden} if self.reads_encoder else {}
        for block in self.blocks:
            block.build(hidden, **across)
        if self.final_norm is not None:
            self.final_norm.build(hidden)
        self.built = True

    def call(
        self,
        inputs: Tensor | dict[str, Tensor],
        padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        return self._run(unpack(inputs, self.input_names, padding_mask, segment_ids), training)

    def init_memory(self, batch_size: int | Tensor, masked: bool = True) -> dict[str, Tensor]:
        """Returns the empty segment memory of `batch_size` texts, for `forward_with_memory`.

        Args:
            batch_size: B, texts.
            masked: whether empty slots are hidden. If not they are zero vectors of document 0, which take part in every
                softmax, as in the published code of Sukhbaatar et al. 2019. Default True.

        Returns:
            Dictionary {"segment_ids": int32 (B, L), name of a block: float (B, L, D)}.
        """
        return empty_memory(self, batch_size, masked)

    def forward_with_memory(
        self, inputs: Tensor | dict[str, Tensor], memory: dict[str, Tensor], training: bool | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the next segment of texts, with a segment memory of what came before (Dai et al. 2019).

        Each block attends to its own inputs at the `memory_length` positions before the segment as well, without a
        gradient, where they are of the same document. The result equals that of the whole text in one call if no layer
        looks back further than the memory, dropout is off, and segments are multiples of the `block_size` of layers
        without a `window`.

        Args:
            inputs: as in a call; the "segment_ids" of a document are the same in all its segments, 0 without them, and
                never negative.
            memory: the segment memory that `init_memory`, or the call for the segment before, returned.
            training: as in a call.

        Returns:
            Pair of the vectors (B, T, D) and the memory for the next segment.
        """
        unpacked = unpack(inputs, self.input_names)
        segments = SegmentMemory(memory, *unpacked[:3])
        x = self._run(unpacked, training, segments)
        return x, segments.after()

    def _run(self, inputs, training, memory=None):
        x = self.embed(self.as_inputs("inputs", inputs.tokens, inputs.padding_mask), training)
        segment_ids = None if inputs.segment_ids is None else as_integers("segment_ids", inputs.segment_ids)
        for block in self.blocks:
            further = arguments_of_block(block, inputs.further)
            further |= {} if memory is None else memory.arguments_of(block, x)
            x = block(x, mask=inputs.padding_mask, segment_ids=segment_ids, training=training, **further)
        return x if self.final_norm is None else self.final_norm(x)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        sizes = input_shape[self.input_names[0]] if isinstance(input_shape, dict) else input_shape
        return (*sizes[:2], self.hidden_dim)

    def get_config(self) -> Config:
        return {**self.base_config(), **self._arguments}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> "Backbone":
        return cls(**config)
