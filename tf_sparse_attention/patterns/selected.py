"""Blocks of earlier keys that each query selects."""

import dataclasses
from collections.abc import Mapping

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.arrangement import Arrangement, Numbers, Together
from tf_sparse_attention.ops.blocks import in_range, max_size, shape, split
from tf_sparse_attention.ops.gather import take_rows
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.ring_buffer import write_slot
from tf_sparse_attention.ops.selected_blocks import (
    best_blocks,
    blocks_in,
    choices_by_name,
    num_choices,
    select_blocks,
    sum_groups,
)
from tf_sparse_attention.ops.selected_tiles import OwnAndSelected, OwnBlocks, SelectedTiles
from tf_sparse_attention.patterns.caches import Everything
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class ChosenBlocks(Pattern):
    """The query's own block up to its position, and earlier blocks that somebody chose for it.

    What is known of a query is "block_0", "block_1" .., the blocks chosen for it, each another one, negative for none.

    Attributes:
        use_shared_choice: whether those of heads that share keys are the same, which are then arranged and read once.

    Args:
        block_size: b, positions of a block. Default 128.
        num_blocks: the most blocks that a query sees, with its own. Default 3.

    Raises:
        ValueError: for numbers that are no positive integers, and for a call that is not causal.
    """

    block_size: int = 128
    num_blocks: int = 3

    must_be_causal = True
    use_shared_choice = True

    def __post_init__(self) -> None:
        checks.check_count("block_size", self.block_size)
        checks.check_count("num_blocks", self.num_blocks)

    @property
    def reach(self) -> int:
        return self.block_size

    @property
    def dense_up_to(self) -> int:
        return self.num_blocks * self.block_size

    def visible(self, query: Place, key: Place) -> Tensor:
        block = key.position // self.block_size
        seen = block == query.position // self.block_size
        for chosen in query.known.values():
            seen = (chosen == block) | seen
        return seen

    def arrange(self, call: Call, known: Known = None) -> Arrangement | Together:
        chosen = list(known[0].values())
        own = OwnBlocks(call.query_length, call.key_length, self.block_size, 0, 0)
        if not chosen:
            return own
        group_size = call.group_size if self.use_shared_choice else 1
        return OwnAndSelected(own, SelectedTiles(chosen, self.block_size, call.key_length, group_size))

    def cache(self) -> "ChosenSlots":
        return ChosenSlots(self.block_size, self.num_blocks)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class SelectedBlocks(ChosenBlocks):
    """The query's own block up to its position, and the earlier blocks whose mean key it likes best, in one softmax.

    Query i sees block i // b, and of the blocks before it the `num_blocks` - 1 of largest q_i . mean(k), each head its
    own, of equal ones the earlier; all of them where there are no more. Means are of keys turned by their positions,
    as scores are. The choice has no gradient. For causal self-attention alone.

    O(T num_blocks b) and, to choose, O(T^2 / b): a 2 b-th of dense scores, small and yet quadratic in time and memory,
    T^2 / b numbers for each head; with `choice_chunk_size` c no more than c T / b of them at a time, in a loop.
    Decoding keeps all keys and reads T / b means and num_blocks b of them for a token.

    Blocks lie on positions, of packed documents too: a block's mean is over the keys of the document of its last token,
    the only one that goes on in later blocks, and a query chooses among blocks whose last token is of its own. Padding
    counts in no mean. A document has an id of its own: it is one run of `segment_ids`.

    Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs" (arXiv 2502.13189).

    Args:
        block_size: b, positions of a block. Default 128.
        num_blocks: blocks that a query sees, with its own. Default 3.
        use_shared_choice: whether heads that share keys see the same blocks, those of the largest sum of their
            products. Default False: each head chooses by itself.
        choice_chunk_size: queries that choose at a time. None: all at once.

    Raises:
        ValueError: for numbers that are no positive integers, and for a call that is not causal.

    Example:
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=SelectedBlocks(4, 2))
        >>> seen = layer.attention_pattern(keras.random.normal((1, 11, 16)), use_causal_mask=True)
        >>> ops.sum(ops.cast(seen[0, 0], "int32"), axis=-1).numpy().tolist()
        [1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7]
    """

    use_shared_choice: bool = False
    choice_chunk_size: int | None = None

    queries_choose = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_switch("use_shared_choice", self.use_shared_choice)
        checks.check_optional_count("choice_chunk_size", self.choice_chunk_size)

    def choose(self, query: Tensor, key: Tensor, masks: TokenMasks) -> Numbers:
        sizes = self.block_size, self.num_blocks - 1
        chosen = select_blocks(query, key, masks, *sizes, self.use_shared_choice, self.choice_chunk_size)
        return choices_by_name(chosen), {}

    def cache(self) -> "SelectedSlots":
        return SelectedSlots(self.block_size, self.num_blocks, self.use_shared_choice)


@dataclasses.dataclass(frozen=True)
class ChosenSlots(Everything):
    """All positions, of which a query reads its own block and those that were chosen for it.

    Args:
        block_size: b.
        num_blocks: blocks that a query reads.
    """

    block_size: int
    num_blocks: int

    shares_reads = True

    def num_slots(self, max_length: Size) -> Size:
        # Whole blocks, and one more than the others that a query can have chosen: see `read`.
        return max_size(blocks_in(max_length, self.block_size), self.num_blocks) * self.block_size

    def read(self, place: Place, num_slots: Size) -> Tensor:
        chosen = list(place.known.values())
        own = place.position // self.block_size  # (B, 1)
        blocks = [own if not chosen else ops.broadcast_to(own, shape(chosen[0]))]
        # A choice that there is not is read as block `num_blocks` - 1. A query of that block or a later one has all its
        # choices, so that it is later than the query's, and hidden.
        blocks += [ops.where(block >= 0, block, self.num_blocks - 1) for block in chosen]
        slots = ops.stack(blocks, axis=-1)[..., None] * self.block_size + ops.arange(self.block_size, dtype="int32")
        return ops.reshape(slots, (*shape(blocks[0]), self.block_size * len(blocks)))


@dataclasses.dataclass(frozen=True)
class SelectedSlots(ChosenSlots):
    """`ChosenSlots`, and the sum of the keys of each block, "block_sum" float32 (B, n, G, H), by which queries choose.

    Args:
        block_size: b.
        num_blocks: blocks that a query reads.
        use_shared_choice: whether heads that share keys choose together.
    """

    use_shared_choice: bool = False

    @property
    def shares_reads(self) -> bool:  # type: ignore[override]  # computed, where others keep it
        return self.use_shared_choice

    def empty_digest(self, keys: Tensor) -> dict[str, Tensor]:
        batch, heads, slots, size = shape(keys)
        return {"block_sum": ops.zeros((batch, heads, slots // self.block_size, size), "float32")}

    def digest_of_prompt(self, entry: Mapping[str, Tensor], key: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        exists = ops.arange(shape(key)[2], dtype="int32") < lengths[:, None]
        key = ops.where(exists[:, None, :, None], ops.cast(key, "float32"), 0)
        blocks = split(key, self.block_size, -2, shape(entry["block_sum"])[2])
        return {"block_sum": ops.sum(blocks, axis=-2)}

    def digest_of_next(
        self, entry: Mapping[str, Tensor], key: Tensor, place: Place, kept: Tensor | None
    ) -> dict[str, Tensor]:
        sums, (batch, heads) = entry["block_sum"], shape(key)[:2]
        at = in_range(place.position // self.block_size, shape(sums)[2])
        at = ops.broadcast_to(at, (batch, heads))
        before = take_rows(sums, at[..., None])
        goes_on = (place.position % self.block_size > 0)[..., None, None]
        total = ops.where(goes_on, before, 0) + ops.cast(key, "float32")
        return {"block_sum": write_slot(sums, total, at, kept)}

    def choose(self, entry: Mapping[str, Tensor], query: Tensor, place: Place) -> dict[str, Tensor]:
        means = entry["block_sum"] / self.block_size  # of blocks that are complete
        num_blocks = shape(means)[2]
        earlier = ops.arange(num_blocks, dtype="int32") < (place.position // self.block_size)[..., None]
        num_heads = query.shape[1]
        if self.use_shared_choice:
            query = sum_groups(query, means.shape[1])
        chosen = best_blocks(query, means, earlier[:, :, None], num_choices(num_blocks, self.num_blocks - 1))
        return choices_by_name([repeat_key_heads(block, num_heads)[..., 0] for block in chosen])
