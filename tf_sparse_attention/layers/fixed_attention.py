"""Fixed attention as a Keras layer."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.factorized_attention import FactorizedAttention
from tf_sparse_attention.ops.attend import Attended
from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.decoding import Kept, empty_places, keep, keep_positions, take_positions
from tf_sparse_attention.ops.fixed import Columns, fixed_attention
from tf_sparse_attention.ops.masks import block_mask, summary_mask


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FixedAttention(FactorizedAttention):
    """Multi-head attention inside blocks and to the last columns of every block, in O(T (l + c T / l)).

    With l = `block_size` and c = `num_summary`: the local part sees the keys of the query's own block, the far part the
    summary columns, the keys j with l - c <= j mod l < l; both up to the query's own position if causal. It suits data
    without a period, such as text (Child et al. 2019, section 4.3), where the paper took l of 128 or 256 and c of 8, 16
    or 32.

    In a causal call the first l - c positions of a sequence have no summary to see: in heads of the far part alone
    their result is zero. Any length works.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: l, positions in a block. Default 128.
        num_summary: c, summary columns of a block. Default 8.
        num_groups: how many different sets of columns the heads of the far part (all heads if "merged") share out: head
            h sees those l - (g + 1) c .. l - g c - 1 with g = h mod `num_groups`. Default 1. The paper found several
            better than larger c (section 4.3).
        heads: "split", "merged" or "interleaved", see `FactorizedAttention`. Default "split".
        layer_index: the number of the layer, for "interleaved".
        **kwargs: the other arguments of `AttentionLayer`. `max_distance` is by default the block size: those of the far
            part are clipped unless it is larger.

    Raises:
        ValueError: for a wrong argument, more summary columns than a block has, and heads that the groups do not
            divide.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = FixedAttention(num_heads=4, key_dim=16, block_size=32, num_summary=4)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(self, num_heads, key_dim, *, block_size=128, num_summary=8, num_groups=1, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        for name, value in (("block_size", block_size), ("num_summary", num_summary), ("num_groups", num_groups)):
            checks.check_count(name, value)
        if num_summary * num_groups > block_size:
            raise ValueError(
                "`num_summary` times `num_groups` must be at most `block_size`. Received: "
                f"num_summary={num_summary}, num_groups={num_groups}, block_size={block_size}."
            )
        self.block_size = block_size
        self.num_summary = num_summary
        self.num_groups = num_groups
        if self._num_far_heads % num_groups:
            raise ValueError(
                "`num_groups` must divide the number of heads that see summaries. Received: "
                f"num_groups={num_groups}, {self._num_far_heads} such heads."
            )

    @property
    def reach(self):
        return self.block_size

    @property
    def _num_far_heads(self):
        # Of interleaved layers all are asked, so that layers differ in nothing but their number.
        return self.num_heads // 2 if self.heads == "split" else self.num_heads

    def _columns(self):
        return [Columns(self.block_size, self.num_summary, group) for group in range(self.num_groups)]

    def attend_part(self, part, query, key, value, *, masks, position, **options):
        columns = self._columns()[: 1 if part == "local" else None]
        results = []
        for group, own in enumerate(columns):
            heads = slice(group, None, len(columns))
            results.append(
                fixed_attention(
                    *(_heads_of_group(x, group, len(columns)) for x in (query, key, value)),
                    own,
                    part,
                    masks=masks.of_heads(heads),
                    position=position.of_heads(heads),
                    **options,
                )
            )
        return results[0] if len(results) == 1 else Attended(*map(_join_groups, zip(*results, strict=True)))

    def pattern_of_part(self, part, query_length, key_length, causal):
        lengths = query_length, key_length
        near = block_mask(*lengths, self.block_size, 0, 0, causal)
        if part == "local":
            return near
        far = [summary_mask(*lengths, own.block_size, own.first, own.count, causal) for own in self._columns()]
        far = ops.stack(far * (self._num_far_heads // self.num_groups))  # head h has group h mod num_groups
        return far if part == "far" else ops.logical_or(near, far)

    def first_near(self, index):
        return index // self.block_size * self.block_size

    def new_far(self, batch_size, num_heads, max_length):
        size = -(-max_length // self.block_size) * self.num_summary
        return empty_places(batch_size, num_heads, size, self.key_dim, self.value_dim, self.compute_dtype)

    def fill_far(self, places, key, value):
        return keep_positions(places, key, value, self._positions(places))

    def keep_far(self, places, key, value, index):
        place = index[:, None] % self.block_size - self._first_summaries(shape(key)[1])  # (B, n)
        is_summary = ops.logical_and(place >= 0, place < self.num_summary)[..., None, None]
        at = index[:, None] // self.block_size * self.num_summary + in_range(place, self.num_summary)
        before = [take_positions(places[name], at[..., None]) for name in ("key", "value")]
        new = [ops.where(is_summary, ops.cast(x, old.dtype), old) for x, old in zip((key, value), before, strict=True)]
        return keep(places, *new, at)

    def kept_far(self, places, index, merged):
        positions, at = self._positions(places), index[:, None, None]
        # Those of the own block are among the local ones.
        seen = positions < self.first_near(at) if merged else positions <= at
        return Kept.at(places["key"], places["value"], positions, index, seen)

    def _positions(self, places):
        """Returns the position of each summary that is kept, int32 (1, n, S)."""
        _, heads, size, _ = shape(places["key"])
        number = ops.arange(size, dtype="int32")
        in_block = number % self.num_summary + self._first_summaries(heads)[:, None]
        return (number // self.num_summary * self.block_size + in_block)[None]

    def _first_summaries(self, num_heads):
        """Returns the place in its block of the first summary of each head, int32 (n,)."""
        groups = np.arange(num_heads) % self.num_groups
        return ops.convert_to_tensor(self.block_size - (groups + 1) * self.num_summary, "int32")

    def get_config(self):
        names = ("block_size", "num_summary", "num_groups")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _heads_of_group(x, group, num_groups):
    """Returns every `num_groups`-th head of (B, n, T, H), from the `group`-th on."""
    if num_groups == 1:
        return x
    batch, heads, length, size = shape(x)
    x = ops.reshape(x, (batch, heads // num_groups, num_groups, length, size))
    x = ops.slice(x, (0, 0, group, 0, 0), (batch, heads // num_groups, 1, length, size))
    return ops.reshape(x, (batch, heads // num_groups, length, size))


def _join_groups(parts):
    """Returns the heads of all groups in their order, (B, n, ...), None where the parts are None."""
    if parts[0] is None:
        return None
    batch, heads, *rest = shape(parts[0])
    return ops.reshape(ops.stack(parts, axis=2), (batch, heads * len(parts), *rest))
