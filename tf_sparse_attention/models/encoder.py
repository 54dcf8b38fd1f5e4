"""Bidirectional encoder with global tokens for long sequences, as in Longformer and BigBird."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.models.blocks import make_blocks, serialize_attention
from tf_sparse_attention.models.inputs import CheckedInputs, as_token_ids, collect_extra_mask_names, select_masks
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.ops.masks import document_starts
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Tensor

COUNTS = ("vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim", "max_length", "num_token_types")
INPUTS = ("token_ids", "padding_mask", "segment_ids", "token_type_ids")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Encoder(CheckedInputs, Model):
    """BERT with local attention and global tokens: post-norm blocks over embeddings of tokens, positions and types.

    x = LN(tokens + positions + token types), then blocks LN(x + f(x)). Sources: Devlin et al. 2019 for the blocks,
    Longformer (Beltagy et al. 2020) and BigBird (Zaheer et al. 2020) for their attention; `tsa.convert` loads both.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        hidden_dim: D, channels.
        intermediate_dim: channels inside the feed-forward layers.
        attention: list of the attention parts of each block, as in `Backbone`. Longformer and BigBird have one part,
            `GlobalLocalAttention`.
        max_length: number of position embeddings. With `padding_id`, the maximum sequence length is
            `max_length - padding_id - 1`.
        num_token_types: number of token types, such as first and second sentence. Default 1.
        activation: activation of the feed-forward, see `FeedForward`. Default "exact_gelu".
        layer_norm_epsilon: epsilon of the layer norms. Default 1e-12.
        dropout: dropout rate after embeddings and sublayers. Default 0.
        embedding_scale: factor of the token embeddings. Default 1.
        padding_id: id of padding, as in Longformer. Positions count the tokens that are not padding, from
            `padding_id + 1`. None: positions count all tokens from 0.
        global_block: block size in tokens, as in BigBird: the first and last block of a sequence are global. None:
            `global_mask` marks global tokens.
        first_block_count: number of times that tokens of the first global block count in the softmax of other tokens.
            Default 1.
        use_pooler: whether to return a pooled output. Default True.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int (B, T), token ids; or a dictionary with "token_ids" and optional keys. "padding_mask" (B, T): zero
            for padding. "token_type_ids", int (B, T): type of each token, default 0. "global_mask" (B, T): nonzero for
            global tokens, at most `num_global` per row. "segment_ids", int (B, T): document of each token of packed
            rows, with contiguous documents. Attention stays within documents, and positions restart in each
            document. The first `num_first_global` tokens of each document, see `GlobalLocalAttention`, are global.
        training: whether to apply dropout.

    Returns:
        Dictionary of "sequence_output", float (B, T, D), and with a pooler "pooled_output", float (B, D): tanh of a
        dense layer on the first token. With "segment_ids", "pooled_output" is (B, T, D): the pooled vector of each
        token's document.

    Raises:
        ValueError: if an argument is invalid, `inputs` has missing or unknown keys, rows are too long, "segment_ids" is
            combined with `global_block`, or "token_type_ids" is missing with "segment_ids" and several types.

    Example:
        >>> part = {"layer": "GlobalLocalAttention", "num_heads": 2, "key_dim": 8, "window": 5, "num_first_global": 1}
        >>> encoder = Encoder(100, 2, 16, 32, [part], max_length=64)
        >>> tuple(encoder(keras.ops.ones((1, 40), "int32"))["sequence_output"].shape)
        (1, 40, 16)
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        hidden_dim: int,
        intermediate_dim: int,
        attention: Sequence[Any],
        max_length: int,
        num_token_types: int = 1,
        activation: str = "exact_gelu",
        layer_norm_epsilon: float = 1e-12,
        dropout: float = 0.0,
        embedding_scale: float = 1.0,
        padding_id: int | None = None,
        global_block: int | None = None,
        first_block_count: int = 1,
        use_pooler: bool = True,
        **kwargs: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # float ids would be rounded to half precision
        for name in COUNTS:
            checks.check_count(name, arguments[name])
        checks.check_count("first_block_count", first_block_count)
        checks.check_optional_count("padding_id", padding_id, minimum=0)
        checks.check_optional_count("global_block", global_block)
        checks.check_rate("dropout", dropout)
        checks.check_switch("use_pooler", use_pooler)
        arguments["attention"] = serialize_attention(attention)
        self._argument_names = tuple(arguments)
        for name, value in arguments.items():
            setattr(self, name, value)
        self._make_layers()
        self.built = True
        if global_block and "global_mask" not in self.extra_mask_names:
            raise ValueError(
                "`global_block` must be None unless `attention` has a part with global tokens, such as "
                f"'GlobalLocalAttention'. Received: global_block={global_block}, attention={self.attention!r}."
            )

    def _make_layers(self):
        common = {"dtype": self.dtype_policy}
        # The weights of token types are named "segment" for compatibility with saved models.
        sizes = {"token": self.vocabulary_size, "position": self.max_length, "segment": self.num_token_types}
        self.embeddings = {}
        for name, size in sizes.items():
            self.embeddings[name] = keras.layers.Embedding(
                size, self.hidden_dim, name=f"{name}_embedding", dtype=sublayer_policy(self, f"{name}_embedding")
            )
            self.embeddings[name].build((None, None))
        self.embedding_norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, name="embedding_norm", **common
        )
        self.embedding_norm.build((None, None, self.hidden_dim))
        self.embedding_dropout = keras.layers.Dropout(self.dropout, name="embedding_dropout", **common)
        names = ("attention", "num_layers", "intermediate_dim", "activation", "dropout", "layer_norm_epsilon")
        arguments = {name: getattr(self, name) for name in names}
        # mixed=False keeps the weight names of saved models whose blocks have one part.
        self.blocks = make_blocks(dtype=self.dtype_policy, norm="post", mixed=False, **arguments)
        for block in self.blocks:
            block.build((None, None, self.hidden_dim))
        self.pooler = None
        if self.use_pooler:
            policy = sublayer_policy(self, "pooler")
            self.pooler = keras.layers.Dense(self.hidden_dim, activation="tanh", name="pooler", dtype=policy)
            self.pooler.build((None, self.hidden_dim))

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        inputs = self._check_inputs(inputs if isinstance(inputs, dict) else {"token_ids": inputs})
        mask = None if inputs["padding_mask"] is None else ops.cast(inputs["padding_mask"], "bool")
        extra = {name: inputs[name] for name in self.extra_mask_names if inputs[name] is not None}
        if self.global_block:
            extra["global_mask"] = self._global_blocks(inputs["token_ids"], self.global_block)
        starts = None if inputs["segment_ids"] is None else document_starts(inputs["segment_ids"])
        x = self._embed(inputs["token_ids"], inputs["token_type_ids"], starts)
        x = self.embedding_dropout(self.embedding_norm(x), training=training)
        for block in self.blocks:
            masks = self._select_masks(block, extra, starts)
            x = block(x, mask=mask, segment_ids=inputs["segment_ids"], **masks, training=training)
        pooled = {} if self.pooler is None else {"pooled_output": self.pooler(_first_tokens(x, starts))}
        return {"sequence_output": x, **pooled}

    def _select_masks(self, block, extra, starts):
        """Return the extra masks of the attention of a block, by name."""
        masks = select_masks(block, extra)
        if starts is None or "global_mask" not in block.attention.extra_mask_names:
            return masks
        marks = mark_first_tokens(block, masks.get("global_mask"), starts)
        return masks if marks is None else {**masks, "global_mask": marks}

    @property
    def extra_mask_names(self) -> tuple[str, ...]:
        """Names of masks that only some layers accept, such as "global_mask"."""
        return collect_extra_mask_names(self.blocks)

    def _check_inputs(self, inputs):
        """Return all inputs by name, None for missing inputs."""
        names = {*INPUTS, *self.extra_mask_names}
        if "token_ids" not in inputs or set(inputs) - names:
            raise ValueError(
                f'`inputs` must have the key "token_ids" and only keys of {sorted(names)}. Received: {sorted(inputs)}.'
            )
        checked = {name: None if inputs.get(name) is None else ops.convert_to_tensor(inputs[name]) for name in names}
        token_ids = checked["token_ids"] = as_token_ids("token_ids", checked["token_ids"], self.vocabulary_size)
        length, longest = token_ids.shape[1], self.max_length
        longest -= 0 if self.padding_id is None else self.padding_id + 1
        if isinstance(length, int) and length > longest:
            raise ValueError(f"`token_ids` must have at most {longest} positions. Received: {length}.")
        if self.global_block and checked["global_mask"] is not None:
            raise ValueError("`global_mask` must be None with `global_block`. Received: a mask.")
        if checked["segment_ids"] is not None:
            self._check_packed(checked)
        return checked

    def _check_packed(self, inputs):
        if self.global_block:
            raise ValueError(
                "`segment_ids` must be None with `global_block`, which marks blocks of a row, not of its documents. "
                f"Received: segment_ids, global_block={self.global_block}."
            )
        if self.num_token_types > 1 and inputs["token_type_ids"] is None:
            raise ValueError(
                "`token_type_ids` must be given with `segment_ids` if the encoder has several token types: "
                "`segment_ids` are documents of packed rows, not types. For rows of one document, pass only "
                f"`token_type_ids`. Received: segment_ids, num_token_types={self.num_token_types}."
            )

    def _embed(self, ids, types, starts):
        x = self.embeddings["token"](ids) * self.embedding_scale
        types = ops.zeros_like(ids) if types is None else types
        return x + self.embeddings["position"](self._positions(ids, starts)) + self.embeddings["segment"](types)

    def _positions(self, ids, starts):
        if self.padding_id is not None:
            return token_positions(ids != self.padding_id, starts) + self.padding_id
        positions = ops.broadcast_to(ops.arange(shape(ids)[1], dtype="int32"), shape(ids))
        return positions if starts is None else positions - starts

    def _global_blocks(self, ids, size):
        """Return how often each token counts as global, int (B, T); 0 outside the first and last block."""
        positions = ops.arange(shape(ids)[1], dtype="int32")
        last = (shape(ids)[1] - 1) // size
        counts = ops.where(positions // size == last, 1, 0)
        counts = ops.where(positions < size, self.first_block_count, counts)
        return ops.broadcast_to(counts, shape(ids))

    def get_config(self) -> Config:
        return self.base_config(*self._argument_names)


def _first_tokens(x, starts):
    """Return the vector of each row's first token, (B, D), or of each token's document, (B, T, D)."""
    if starts is None:
        return x[:, 0]
    return ops.take_along_axis(x, ops.broadcast_to(starts[..., None], shape(x)), axis=1)


def token_positions(is_token: Tensor, starts: Tensor | None = None) -> Tensor:
    """Return the position of each token in its document, from 1, and 0 for padding: int32 (B, T).

    Args:
        is_token: bool (B, T), False for padding.
        starts: result of `ops.masks.document_starts`. None: a row is one document.
    """
    is_token = ops.cast(is_token, "int32")
    counts = ops.cumsum(is_token, axis=1)
    if starts is not None:
        counts = counts - ops.take_along_axis(counts - is_token, starts, axis=1)
    return counts * is_token


def mark_first_tokens(block: keras.layers.Layer, global_mask: Tensor | None, starts: Tensor) -> Tensor | None:
    """Add the first tokens of each document to a global mask: int (B, T), or None if no token is global.

    Attention layers mark only the first tokens of a row, not the first tokens of later documents.

    Args:
        block: a `TransformerBlock`.
        global_mask: bool or int (B, T), or None.
        starts: result of `ops.masks.document_starts`.

    Raises:
        ValueError: if parts of the block differ in `num_first_global`.
    """
    parts = getattr(block.attention, "parts", [block.attention])
    counts = {getattr(part, "num_first_global", 0) for part in parts if "global_mask" in part.extra_mask_names}
    if len(counts) > 1:
        raise ValueError(
            "`segment_ids` must be None unless all parts with global tokens have the same `num_first_global`. "
            f"Received: segment_ids, and parts of {block.name} with num_first_global {sorted(counts)}."
        )
    if not any(counts):
        return global_mask
    first = ops.cast(ops.arange(shape(starts)[1], dtype="int32") - starts < counts.pop(), "int32")
    return first if global_mask is None else ops.maximum(first, ops.cast(global_mask, "int32"))
