"""A bidirectional encoder of long texts with global tokens: Longformer's and BigBird's."""

import warnings

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.models.attention_parts import plain_attention
from tf_sparse_attention.models.backbone_arguments import further_masks_of, masks_of_block
from tf_sparse_attention.models.blocks import make_blocks
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.ops.blocks import shape

INPUTS = ("token_ids", "padding_mask", "segment_ids")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Encoder(Model):
    """BERT with local attention and global tokens: post-norm blocks over embeddings of tokens, positions and segments.

    x = LN(tokens + positions + segments), then blocks LN(x + f(x)). Sources: Devlin et al. 2019 for the blocks,
    Longformer (Beltagy et al. 2020) and BigBird (Zaheer et al. 2020) for their attention; `tsa.convert` loads both.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        hidden_dim: D, channels.
        intermediate_dim: channels inside the feed-forward layers.
        attention: the parts of each block's attention, as in `Backbone`: a list of dictionaries with the name of a
            class of `tf_sparse_attention.layers` under "layer" and its arguments, or of attention layers; or a list of
            such lists, one for each block. Longformer and BigBird have one part, `GlobalLocalAttention`.
        max_length: positions that have an embedding; with `padding_id` the longest text has `padding_id + 1` fewer.
        num_segments: ids of segments. Default 1.
        activation: of `FeedForward`. Default "exact_gelu".
        epsilon: of the layer norms. Default 1e-12.
        dropout: rate after embeddings and sublayers, in training. Default 0.
        embedding_scale: factor of the token embeddings. Default 1.
        padding_id: id of padding where positions count the other tokens from `padding_id + 1` on, as Longformer's do.
            None: positions count all places from 0.
        global_block: positions of a block, of which the first and the last are global in every text, as BigBird's.
            None: what `global_mask` says.
        first_block_count: how often the tokens of the first such block count for the others. Default 1.
        use_pooler: whether there is a pooled output. Default True.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int (B, T), token ids; or a dictionary with "token_ids" and any of "padding_mask" (B, T), zero for
            padding, "segment_ids" (B, T) and "global_mask" (B, T), not zero for global tokens.
        training: whether to drop.

    Returns:
        Dictionary of "sequence_output", float (B, T, D), and with a pooler "pooled_output", float (B, D): tanh of a
        dense layer on the first token.

    Raises:
        ValueError: for a wrong argument, unknown inputs, and texts longer than `max_length`.

    Example:
        >>> part = {"layer": "GlobalLocalAttention", "num_heads": 2, "key_dim": 8, "window": 5, "first_global": 1}
        >>> encoder = Encoder(100, 2, 16, 32, [part], max_length=64)
        >>> tuple(encoder(keras.ops.ones((1, 40), "int32"))["sequence_output"].shape)
        (1, 40, 16)
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        intermediate_dim,
        attention,
        max_length,
        num_segments=1,
        activation="exact_gelu",
        epsilon=1e-12,
        dropout=0.0,
        embedding_scale=1.0,
        padding_id=None,
        global_block=None,
        first_block_count=1,
        use_pooler=True,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # ids given as floats would be rounded to half precision
        counts = {"vocabulary_size": vocabulary_size, "num_layers": num_layers, "hidden_dim": hidden_dim}
        counts |= {"max_length": max_length, "num_segments": num_segments, "first_block_count": first_block_count}
        for name, count in counts.items():
            checks.check_count(name, count)
            setattr(self, name, count)
        checks.check_optional_count("padding_id", padding_id, minimum=0)
        checks.check_optional_count("global_block", global_block)
        checks.check_rate("dropout", dropout)
        checks.check_switch("use_pooler", use_pooler)
        checks.check_count("intermediate_dim", intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.attention = plain_attention(_as_parts(attention, warn=True))
        self.activation = activation
        self.epsilon = epsilon
        self.dropout = dropout
        self.embedding_scale = embedding_scale
        self.padding_id = padding_id
        self.global_block = global_block
        self.use_pooler = use_pooler
        self._make_layers()
        self.built = True
        if global_block and "global_mask" not in self.further_masks:
            raise ValueError(
                "`global_block` must be None unless `attention` has a part with global tokens, as "
                f"'GlobalLocalAttention'. Received: global_block={global_block}, attention={self.attention!r}."
            )

    def _make_layers(self):
        common = {"dtype": self.dtype_policy}
        sizes = {"token": self.vocabulary_size, "position": self.max_length, "segment": self.num_segments}
        self.embeddings = {}
        for name, size in sizes.items():
            self.embeddings[name] = keras.layers.Embedding(size, self.hidden_dim, name=f"{name}_embedding", **common)
            self.embeddings[name].build((None, None))
        self.embedding_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, name="embedding_norm", **common)
        self.embedding_norm.build((None, None, self.hidden_dim))
        self.embedding_dropout = keras.layers.Dropout(self.dropout, name="embedding_dropout", **common)
        names = ("attention", "num_layers", "intermediate_dim", "activation", "dropout", "epsilon")
        own = {name: getattr(self, name) for name in names}
        # Not mixed: weights of blocks of one part have the names, in files too, that they had before there were others.
        self.blocks = make_blocks(dtype=self.dtype_policy, norm="post", mixed=False, **own)
        for block in self.blocks:
            block.build((None, None, self.hidden_dim))
        self.pooler = None
        if self.use_pooler:
            self.pooler = keras.layers.Dense(self.hidden_dim, activation="tanh", name="pooler", **common)
            self.pooler.build((None, self.hidden_dim))

    def call(self, inputs, training=None):
        given = self._checked(inputs if isinstance(inputs, dict) else {"token_ids": inputs})
        mask = None if given["padding_mask"] is None else ops.cast(given["padding_mask"], "bool")
        further = {name: given[name] for name in self.further_masks if given[name] is not None}
        if self.global_block:
            further["global_mask"] = self._global_blocks(given["token_ids"])
        x = self._embed(given["token_ids"], given["segment_ids"])
        x = self.embedding_dropout(self.embedding_norm(x), training=training)
        for block in self.blocks:
            x = block(x, mask=mask, **masks_of_block(block, further), training=training)
        pooled = {} if self.pooler is None else {"pooled_output": self.pooler(x[:, 0])}
        return {"sequence_output": x, **pooled}

    @property
    def further_masks(self):
        """Names of masks that some attention takes beside those of every layer, as "global_mask"."""
        return further_masks_of(self.blocks)

    def _checked(self, inputs):
        """Returns all inputs by name, None where there is none."""
        names = {*INPUTS, *self.further_masks}
        if "token_ids" not in inputs or set(inputs) - names:
            raise ValueError(
                f'`inputs` must have "token_ids" and nothing else than {sorted(names)}. Received: {sorted(inputs)}.'
            )
        given = {name: None if inputs.get(name) is None else ops.convert_to_tensor(inputs[name]) for name in names}
        given["token_ids"] = ops.cast(given["token_ids"], "int32")
        length, longest = given["token_ids"].shape[1], self.max_length
        longest -= 0 if self.padding_id is None else self.padding_id + 1
        if isinstance(length, int) and length > longest:
            raise ValueError(f"`token_ids` must have at most {longest} positions. Received: {length}.")
        if self.global_block and given["global_mask"] is not None:
            raise ValueError("`global_mask` must be left out with `global_block`, which decides it. Received: a mask.")
        return given

    def _embed(self, ids, segments):
        x = self.embeddings["token"](ids) * self.embedding_scale
        segments = ops.zeros_like(ids) if segments is None else segments
        return x + self.embeddings["position"](self._positions(ids)) + self.embeddings["segment"](segments)

    def _positions(self, ids):
        if self.padding_id is None:
            return ops.broadcast_to(ops.arange(shape(ids)[1], dtype="int32"), shape(ids))
        real = ops.cast(ids != self.padding_id, "int32")
        return ops.cumsum(real, axis=1) * real + self.padding_id

    def _global_blocks(self, ids):
        """Returns how often each token counts, int (B, T): those of the first and last block, whole or not."""
        places = ops.arange(shape(ids)[1], dtype="int32")
        last = (shape(ids)[1] - 1) // self.global_block
        counts = ops.where(places // self.global_block == last, 1, 0)
        counts = ops.where(places < self.global_block, self.first_block_count, counts)
        return ops.broadcast_to(counts, shape(ids))

    def get_config(self):
        names = ("vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim", "attention", "max_length")
        names += ("num_segments", "activation", "epsilon", "dropout", "embedding_scale", "padding_id", "global_block")
        names += ("first_block_count", "use_pooler")
        kept = ("name", "trainable", "dtype")
        config = {name: value for name, value in super().get_config().items() if name in kept}
        return {**config, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "attention": _as_parts(config["attention"])})


def _as_parts(attention, warn=False):
    """Returns the `attention` of earlier releases as parts, what is none of them as it is.

    It was a dictionary of arguments of `GlobalLocalAttention`, or a list of one for each block.
    """
    each = [attention] if isinstance(attention, dict) else attention
    if not isinstance(each, (list, tuple)) or not each or not all(map(_is_without_class, each)):
        return attention
    if warn:
        warnings.warn(
            "`attention` of `Encoder` without 'layer' will be refused by the next release: write "
            "[{'layer': 'GlobalLocalAttention', ...}], and a list of such lists where blocks differ.",
            DeprecationWarning,
            stacklevel=3,
        )
    parts = [[{"layer": "GlobalLocalAttention", **arguments}] for arguments in each]
    return parts[0] if isinstance(attention, dict) else parts


def _is_without_class(part):
    return isinstance(part, dict) and not {"layer", "class_name"} & set(part)
