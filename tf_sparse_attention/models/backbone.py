"""Transformer without an output head, for token ids or features."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks, layers
from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.layers.attention.attention_checks import (
    check_entries,
    check_new_tokens,
    is_right_padded,
    num_cached_tokens,
)
from tf_sparse_attention.layers.attention.attention_layer import check_has_cache
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.layers.parts.call_inputs import as_integers, token_mask, zero_padding
from tf_sparse_attention.layers.transformer_block import is_before, make_norm
from tf_sparse_attention.models.backbone_options import (
    GROUPS,
    AttentionOptions,
    DropoutOptions,
    EmbeddingOptions,
    NormOptions,
    as_options,
    check_arguments,
)
from tf_sparse_attention.models.blocks import make_blocks, serialize_attention
from tf_sparse_attention.models.inputs import (
    CheckedInputs,
    as_token_ids,
    collect_extra_mask_names,
    list_input_names,
    select_block_inputs,
    unpack,
)
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.models.segment_memory import SegmentMemory, check_blocks, empty_memory, in_last_document
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.ops.shapes import shape, split
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Backbone(CheckedInputs, Model):
    """Transformer without an output head: embedding, blocks with any attention patterns, and a final norm.

    With `causal=False` it is an encoder. With `cross_attention` it is a decoder that reads the output of an encoder.

    Args:
        vocabulary_size: V, number of token ids. None: the inputs are features, float (B, T, F), such as audio
            frames or embedded tokens. F is the `dim` of `embedding`.
        num_layers: number of blocks.
        hidden_dim: D, channels of the residual stream.
        attention: list of the attention layers of each block, see `parts` of `AttentionOptions`; or `AttentionOptions`.
        intermediate_dim: size inside the feed-forward. None: blocks have no feed-forward.
        activation: activation of the feed-forward, see `FeedForward`. Default "gelu".
        embedding: `EmbeddingOptions`. Default: one table of size `hidden_dim`, without positions.
        norm: "pre", "post" or "pre_and_post"; "pre_rms" and so on use RMS normalization, see `TransformerBlock`; or
            `NormOptions`. Default "pre".
        causal: whether to mask later tokens. Default True.
        dropout: dropout rate on the output of each sublayer, or `DropoutOptions`. Default 0.
        memory_length: L, positions of the segment memory (Transformer-XL). In `forward_with_memory`, blocks also attend
            to their inputs at the L positions before a segment. The patterns of all parts must have `takes_memory`.
            Default 0: no memory.
        remat: whether the backward pass recomputes the blocks, which takes less memory and more time. Default False.
        cross_attention: list of the cross-attention layers of each block, in the form of `attention`. They attend to
            the output of an encoder with the same `hidden_dim`. None: blocks have no cross-attention.
        seed: integer seed of dropout, the initial embedding and the initial centroids. None: the seed of
            `keras.utils.set_random_seed`, as for all other weights.
        **kwargs: `name`, `dtype`, `trainable`.

    Each group of options may also be given as a dictionary of its attributes. `get_config` returns such dictionaries.

    Call arguments:
        inputs: int (B, T) token ids; or a dictionary with "token_ids" and optional "padding_mask", "segment_ids" and
            masks of some layers, such as "global_mask" of `GlobalLocalAttention`. Without a vocabulary: float
            (B, T, F), or "features" instead of "token_ids". With `cross_attention`, the dictionary also has
            "encoder_sequence", float (B, S, D), and optional "encoder_padding_mask", bool (B, S), and
            "encoder_segment_ids", int (B, S), the document of each encoder token.
        padding_mask: bool (B, T), False for padding.
        segment_ids: int (B, T), the document of each token of a packed batch.
        training: whether to apply dropout and update centroids.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid.

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
        super().__init__(autocast=False, **kwargs)  # float ids would be rounded to half precision
        for name, kind in GROUPS.items():
            arguments[name] = as_options(kind, name, arguments[name])
        parts = serialize_attention(arguments["attention"].parts)
        arguments["attention"] = dataclasses.replace(arguments["attention"], parts=parts)
        arguments["cross_attention"] = serialize_attention(cross_attention)
        check_arguments(arguments)
        self._arguments = arguments
        self.vocabulary_size = vocabulary_size  # type: ignore[assignment]  # None for features
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.memory_length = memory_length
        own_attention, norms, rates = (arguments[name] for name in ("attention", "norm", "dropout"))
        self._make_inputs(arguments["embedding"], rates, seed)
        self.supports_masking = True  # encoder outputs may have a Keras mask; the output has none
        self.blocks = make_blocks(
            own_attention.parts,
            num_layers,
            dtype=self.dtype_policy,
            num_local_layers=own_attention.num_local_layers,
            reproduce_reference=own_attention.reproduce_reference,
            cross_attention=arguments["cross_attention"],
            intermediate_dim=intermediate_dim,
            activation=activation,
            activation_dropout=rates.activation,
            dropout=rates.residual,
            norm=norms.placement,
            layer_norm_epsilon=norms.epsilon,
            causal=causal,
            remat=remat,
            seed=seed,
        )
        check_blocks(self.blocks, memory_length)
        self.final_norm = None
        if is_before(norms.placement):
            self.final_norm = make_norm(norms.placement, norms.epsilon, "final_norm", self.dtype_policy)
        self.build((None, None))

    def _make_inputs(self, embedding: EmbeddingOptions, dropout: DropoutOptions, seed: int | None) -> None:
        self.embedding_dim: int = self.hidden_dim if embedding.dim is None else embedding.dim
        self._embedding_dropout, self._token_dropout = dropout.embedding, dropout.tokens
        self.embedding: Any = None
        if self.vocabulary_size is not None:
            self.embedding = self._make_embedding(embedding, derived_seed(seed, 0, 0))
        self.grid_embedding: Any = None
        self.embedding_projection = self.sinusoidal_embedding = None
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

    @property
    def causal(self) -> bool:
        """Whether later tokens are masked."""
        return self._arguments["causal"]

    @property
    def reads_encoder(self) -> bool:
        """Whether the blocks have cross-attention."""
        return self._arguments["cross_attention"] is not None

    @property
    def causal_selection(self) -> bool:
        """Whether content-based selection is also causal."""
        return all(block.causal_selection for block in self.blocks)

    @property
    def extra_mask_names(self) -> tuple[str, ...]:
        """Names of masks that only some layers accept, such as "global_mask"."""
        return collect_extra_mask_names(self.blocks)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Allowed keys of an input dictionary; the first is required."""
        return list_input_names(self.blocks, self.vocabulary_size is not None)

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length, or None."""
        return None if self.grid_embedding is None else math.prod(self.grid_embedding.grid)

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Reason why the model cannot decode with a KV cache, or None."""
        if not self.causal:
            return "it attends to later tokens"
        return next((block.cache_unsupported_reason for block in self.blocks if block.cache_unsupported_reason), None)

    def build(self, input_shape: Any) -> None:
        hidden = (None, None, self.hidden_dim)
        if self.embedding is not None:
            self.embedding.build((None, None))
        for layer in (self.embedding_projection, self.grid_embedding):
            if layer is not None:
                layer.build((None, None, self.embedding_dim))
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
        """Create an empty segment memory for `forward_with_memory`.

        Args:
            batch_size: B, number of sequences.
            masked: whether to mask empty slots. Default True. False: empty slots are zero vectors with segment id 0,
                and queries with that id attend to them, as in the published code of Sukhbaatar et al. 2019.

        Returns:
            Dictionary {"segment_ids": int32 (B, L), name of a block: float (B, L, D)}.
        """
        return empty_memory(self, batch_size, masked)

    @without_autograph
    def forward_with_memory(
        self, inputs: Tensor | dict[str, Tensor], memory: dict[str, Tensor], training: bool | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the output for the next segment of each sequence, with a segment memory (Dai et al. 2019).

        Each block also attends to its own inputs at the `memory_length` positions before the segment, within the
        document and without a gradient. The result equals one call for the whole sequence under three conditions: no
        layer attends further back than the memory, dropout is off, and the length of a segment is a multiple of the
        `block_size` of layers without a `window`.

        Args:
            inputs: as in a call. A document has the same non-negative segment id in all segments. Without
                "segment_ids": id 0.
            memory: result of `init_memory`, or of the call for the previous segment.
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
            further = select_block_inputs(block, inputs.further)
            further |= {} if memory is None else memory.update_block(block, x)
            x = block(x, mask=inputs.padding_mask, segment_ids=segment_ids, training=training, **further)
        return x if self.final_norm is None else self.final_norm(x)

    def as_inputs(self, name: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return token ids (B, T) as integers, or features (B, T, F) in the compute dtype with zeros in padding.

        Args:
            name: name of the argument, for messages.
            x: inputs of the model.
            mask: bool (B, T), False for padding. None: no padding.

        Raises:
            ValueError: if the shape is invalid; in eager mode, if ids exceed the vocabulary.
        """
        shape = tuple(x.shape) if hasattr(x, "shape") else None
        received = type(x).__name__ if shape is None else f"shape {shape}"
        if self.vocabulary_size is not None:
            if shape is None or len(shape) != 2:
                raise ValueError(f"`{name}` must be token ids of shape (batch, positions). Received: {received}.")
            return as_token_ids(name, x, self.vocabulary_size)
        if shape is None or len(shape) != 3 or shape[2] != self.embedding_dim:
            raise ValueError(
                f"`{name}` must be features of shape (batch, positions, {self.embedding_dim}), since the backbone has "
                f"no vocabulary. Received: {received}."
            )
        x = ops.cast(x, self.compute_dtype)
        return zero_padding(x, token_mask("padding_mask", mask, x))

    def embed(self, x: Tensor, training: bool | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the inputs of the first block, float (B, T, D).

        Args:
            x: token ids, int (B, T), or features without a vocabulary, float (B, T, F).
            training: whether to apply dropout.
            positions: int (B, T), positions of the tokens. None: 0 to T - 1.
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
        """Create the cache of empty sequences, for `extend`.

        The cache is a nested dictionary of tensors of static shape, by names of blocks and layers. Decoding with a
        cache gives the results of a call for the whole sequence, without dropout, up to rounding.

        Args:
            batch_size: B, an integer or a scalar tensor.
            max_length: maximum number of tokens of a sequence, an integer or a scalar tensor. None: unbounded, for
                models whose caches have a constant size.
            memory: result of `forward_with_memory` for the previous segment. Each row continues its latest document,
                and positions count from 0 again. None: no memory.
            positions_in_cache, rewind, dtype: as in `AttentionLayer.init_cache`, for all blocks.
            encoder_sequence, encoder_padding_mask: with `cross_attention`, as in a call. The cache holds the keys and
                values of the encoder sequence. None: no encoder outputs, no padding.

        Raises:
            ValueError: if the model cannot decode with a cache, if `memory` is given but `memory_length` is 0, if
                `max_length` exceeds the positions of the model, or is None but the cache of a part grows with the
                sequence, or if encoder outputs are given without `cross_attention`.
        """
        check_has_cache(self)
        if max_length is None and self.max_length is not None:
            raise ValueError(
                f"`max_length` must be given: {self.grid_embedding.name} has {self.max_length} positions. "
                "Received: max_length=None."
            )
        self.check_max_length(max_length)
        if encoder_sequence is not None and not self.reads_encoder:
            raise ValueError("`encoder_sequence` must be None without `cross_attention`. Received: a sequence.")
        encoded = {"encoder_sequence": encoder_sequence, "encoder_padding_mask": encoder_padding_mask}
        if memory is not None and self.memory_length == 0:
            raise ValueError("`memory` must be None for a backbone whose `memory_length` is 0. Received: a memory.")
        seen = None if memory is None else in_last_document(memory["segment_ids"])
        return {
            block.name: block.init_cache(
                batch_size,
                max_length,
                None if memory is None else memory[block.name],
                seen,
                positions_in_cache=positions_in_cache,
                rewind=rewind,
                dtype=dtype,
                **({} if encoder_sequence is None else select_block_inputs(block, encoded)),
            )
            for block in self.blocks
        }

    def check_max_length(self, max_length: int | Tensor | None) -> None:
        """Raise a `ValueError` if a maximum length exceeds the positions of the model."""
        if self.max_length is None or max_length is None or ops.is_tensor(max_length):
            return
        if max_length > self.max_length:
            raise ValueError(
                f"`max_length` must be at most the {self.max_length} positions of the model. "
                f"Received: max_length={max_length}."
            )

    @without_autograph
    def extend(
        self,
        inputs: Tensor | dict[str, Tensor],
        cache: dict[str, Any],
        mask: Tensor | None = None,
        index: int | Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the output for the next tokens of each row, and add them to the cache.

        Args:
            inputs: int (B, q) token ids or features (B, q, F), the next q >= 1 tokens of each row, such as a prompt; or
                a dictionary as in a call. Encoder outputs are not allowed: the cache holds their keys and values.
            cache: result of `init_cache` or of this method.
            mask: bool (B, q), False for padding, which must be on the right. Padding is not added. None: the
                "padding_mask", if any.
            index: as in `AttentionLayer.extend`.

        Returns:
            Pair of the vectors (B, q, D), arbitrary at padding, and the cache.

        Raises:
            ValueError: if `inputs` has segment ids or encoder outputs, or padding is on the left; in eager mode, if ids
                exceed the vocabulary, `index` is not the number of cached tokens, or the cache is too small. Compiled
                programs return NaN for the row instead.
        """
        check_entries(cache, [block.name for block in self.blocks])
        x, mask = self._new_tokens(inputs, mask)
        check_new_tokens("inputs", x, cache, index)
        start = num_cached_tokens(cache) if index is None else index
        batch, length = shape(x)[:2]
        positions = ops.broadcast_to(ops.cast(start, "int32"), (batch,))[:, None]
        if x.shape[1] != 1:
            positions = positions + ops.arange(length, dtype="int32")
        x, new = self._embed_new(x, positions, mask), {}
        for block in self.blocks:
            x, new[block.name] = block.extend(x, cache[block.name], mask, index)
        return (x if self.final_norm is None else self.final_norm(x)), new

    @without_autograph
    def prefill(
        self,
        inputs: Tensor | dict[str, Tensor],
        cache: dict[str, Any],
        mask: Tensor | None = None,
        chunk_size: int = 512,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Add a long prompt to the cache in chunks, with the memory of one chunk.

        Args:
            inputs, cache, mask: as in `extend`. The cache may hold tokens.
            chunk_size: tokens per chunk. Default 512.

        Returns:
            Pair of the vectors (B, 1, D) at the last token of each row, and the cache. Rows without tokens have zeros.

        Raises:
            ValueError: as in `extend`, or if `chunk_size` is not a positive integer.
        """
        checks.check_count("chunk_size", chunk_size)
        tokens, mask = self._new_tokens(inputs, mask)
        batch, length = shape(tokens)[:2]
        mask = ops.ones((batch, length), "bool") if mask is None else ops.broadcast_to(mask, (batch, length))
        is_right = is_right_padded(mask)
        if is_right is not None:  # padding on the left: an invalid first chunk, so that the output is NaN
            mask = ops.where(is_right[:, None], mask, ops.arange(length, dtype="int32") > 0)
        chunk_size = max(chunk_size, 2)  # `extend` cannot find padding on the left in one token
        number = (length + chunk_size - 1) // chunk_size
        chunks = ops.moveaxis(split(tokens, chunk_size, 1 - len(tokens.shape), number), 1, 0)  # (n, B, c, ...)
        masks = ops.moveaxis(split(mask, chunk_size, -1, number), 1, 0)

        def read(index, last, cache):
            is_token = masks[index]
            x, cache = self.extend(chunks[index], cache, is_token)
            count = ops.sum(ops.cast(is_token, "int32"), axis=-1)[:, None, None]
            at = ops.broadcast_to(ops.maximum(count - 1, 0), (batch, 1, 1))
            return index + 1, ops.where(count > 0, ops.take_along_axis(x, at, axis=1), last), cache

        start = ops.zeros((), "int32"), ops.zeros((batch, 1, self.hidden_dim), self.compute_dtype), cache
        if isinstance(number, int) and number == 1:
            return read(0, *start[1:])[1:]
        return ops.while_loop(lambda index, *_: index < number, read, start)[1:]

    def _new_tokens(self, inputs, mask):
        """Return the tokens or features of `extend`, and their mask (B, q) or None."""
        if mask is not None and isinstance(inputs, dict) and inputs.get("padding_mask") is not None:
            raise ValueError("`mask` must be None if `inputs` has 'padding_mask'. Received: both.")
        unpacked = unpack(inputs, self.input_names, mask)
        unsupported = ["segment_ids"] if unpacked.segment_ids is not None else sorted(unpacked.further)
        if unsupported:
            raise ValueError(
                f"`inputs` must not have {unsupported[0]!r} with a cache, which holds one document per row and the "
                f"keys of encoder outputs. Received: {unsupported}."
            )
        tokens = self.as_inputs("inputs", unpacked.tokens, unpacked.padding_mask)
        return tokens, token_mask("mask", unpacked.padding_mask, tokens)

    def _embed_new(self, x, positions, mask):
        """Embed new tokens at `positions` (B, q). Only padding may be beyond the positions of the model."""
        if self.max_length is None:
            return self.embed(x, positions=positions)
        is_beyond: Any = merge(positions >= self.max_length, mask)
        known = concrete_values(is_beyond)
        if known is not None and np.any(known):
            raise ValueError(
                f"`inputs` must be within the {self.max_length} positions of the model. Received: tokens beyond them "
                f"in rows {np.flatnonzero(known.any(axis=1)).tolist()}."
            )
        x = self.embed(x, positions=ops.clip(positions, 0, self.max_length - 1))
        return x if known is not None else ops.where(is_beyond[..., None], float("nan"), x)

    @without_autograph
    def rewind(self, cache: dict[str, Any], lengths: int | Tensor) -> dict[str, Any]:
        """Remove the last tokens of each row from the cache.

        Args:
            cache: result of `extend`.
            lengths: int32 () or (B,), number of tokens to keep; see `AttentionLayer.rewind`.
        """
        check_entries(cache, [block.name for block in self.blocks])
        return {block.name: block.rewind(cache[block.name], lengths) for block in self.blocks}

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        sizes = input_shape[self.input_names[0]] if isinstance(input_shape, dict) else input_shape
        return (*sizes[:2], self.hidden_dim)

    def get_config(self) -> Config:
        groups = {name: vars(self._arguments[name]) for name in GROUPS}
        return {**self.base_config(), **copy.deepcopy({**self._arguments, **groups})}
