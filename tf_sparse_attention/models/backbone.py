"""The Transformer without its task: from token ids, or features, to vectors."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.blocks.transformer_block import is_before, make_norm
from tf_sparse_attention.layers.parts.call_inputs import as_integers
from tf_sparse_attention.models.attention_parts import serialize_attention
from tf_sparse_attention.models.backbone_cache import BackboneCache
from tf_sparse_attention.models.backbone_inputs import BackboneInputs
from tf_sparse_attention.models.backbone_options import (
    GROUPS,
    AttentionOptions,
    DropoutOptions,
    EmbeddingOptions,
    NormOptions,
    as_options,
    check_arguments,
)
from tf_sparse_attention.models.blocks import make_blocks
from tf_sparse_attention.models.input_dictionary import (
    arguments_of_block,
    extra_mask_names_of,
    input_names_of,
    unpack,
)
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.models.segment_memory import SegmentMemory, check_blocks, empty_memory
from tf_sparse_attention.models.token_ids import CheckedInputs
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Backbone(CheckedInputs, BackboneInputs, BackboneCache, Model):
    """Transformer without a head: embedding, blocks with attention of any patterns, and a final norm.

    With `causal=False` it is an encoder. With `cross_attention` it is a decoder that reads the output of an encoder.

    Args:
        vocabulary_size: V, number of token ids. None: the inputs are features, float (B, T, F), with F the `dim` of
            `embedding`. Examples are audio frames, or tokens that another model has embedded.
        num_layers: number of blocks.
        hidden_dim: D, channels of the residual stream.
        attention: list of the attention layers of each block, the `parts` of `AttentionOptions`; or `AttentionOptions`.
        intermediate_dim: size inside the feed-forward. None: blocks have no feed-forward.
        activation: activation of the feed-forward, see `FeedForward`. Default "gelu".
        embedding: `EmbeddingOptions`. Default: one table of size `hidden_dim`, without positions.
        norm: "pre", "post" or "pre_and_post", for RMS norms with the suffix "_rms", see `TransformerBlock`; or
            `NormOptions`. Default "pre".
        causal: whether to mask later tokens. Default True.
        dropout: dropout rate on the output of each sublayer, or `DropoutOptions`. Default 0.
        memory_length: L, positions of the segment memory (Transformer-XL). `forward_with_memory` attends to the block
            inputs of the L positions before a segment. The patterns of all parts must have `takes_memory`. Default 0:
            no memory.
        remat: whether the backward pass recomputes the blocks, which takes less memory and more time. Default False.
        cross_attention: list of the cross-attention layers of each block, in the form of `attention`. They attend to
            the output of an encoder with the same `hidden_dim`. None: blocks have no cross-attention.
        seed: integer seed of dropout, the initial embedding and the initial centroids. All other weights, and without a
            seed these too, follow `keras.utils.set_random_seed`.
        **kwargs: `name`, `dtype`, `trainable`.

    Each group of options may also be given as a dictionary of its attributes. `get_config` returns such dictionaries.

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
        attention: Sequence[Any] | AttentionOptions | Config,
        intermediate_dim: int | None = None,
        activation: str = "gelu",
        embedding: EmbeddingOptions | Config | None = None,
        norm: str | NormOptions | Config = "pre",
        causal: bool = True,
        dropout: float | DropoutOptions | Config = 0.0,
        memory_length: int = 0,
        remat: bool = False,
        cross_attention: Sequence[Any] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # ids given as floats would be rounded to half precision
        for name, kind in GROUPS.items():
            arguments[name] = as_options(kind, name, arguments[name])
        parts = serialize_attention(arguments["attention"].parts)
        arguments["attention"] = dataclasses.replace(arguments["attention"], parts=parts)
        arguments["cross_attention"] = serialize_attention(cross_attention)
        check_arguments(arguments)
        self._arguments = arguments
        self.vocabulary_size = vocabulary_size  # type: ignore[assignment]  # None of features
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.memory_length = memory_length
        self._make_inputs(arguments["embedding"], arguments["dropout"], seed)
        self.supports_masking = True  # of what an encoder returns, and of none that Keras would make
        self.blocks = self._make_blocks(**arguments)
        check_blocks(self.blocks, memory_length)
        self.final_norm, norms = None, arguments["norm"]
        if is_before(norms.placement):
            self.final_norm = make_norm(norms.placement, norms.epsilon, "final_norm", self.dtype_policy)
        self.build((None, None))

    def _make_blocks(
        self, attention, norm, dropout, vocabulary_size, hidden_dim, embedding, memory_length, **arguments
    ):
        return make_blocks(
            attention.parts,
            num_local_layers=attention.num_local_layers,
            reproduce_reference=attention.reproduce_reference,
            activation_dropout=dropout.activation,
            dropout=dropout.residual,
            norm=norm.placement,
            layer_norm_epsilon=norm.epsilon,
            dtype=self.dtype_policy,
            **arguments,
        )

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
        groups = {name: dict(vars(self._arguments[name])) for name in GROUPS}
        return {**self.base_config(), **self._arguments, **groups}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> "Backbone":
        return cls(**config)
