"""Block selection: the query's own block and the highest-scoring earlier blocks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.attend import Attended, lowest
from tf_sparse_attention.ops.block_selection import (
    best_blocks,
    blocks_in,
    choices_by_name,
    num_choices,
    select_blocks,
    sum_groups,
)
from tf_sparse_attention.ops.gather import stable_order, take_blocks, take_numbers, take_rows, upstream_gradient
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads, take_key_heads
from tf_sparse_attention.ops.ring_buffer import write_slot
from tf_sparse_attention.ops.shapes import are_known, in_range, max_size, min_if_known, shape, split
from tf_sparse_attention.patterns.arrangement import Arrangement, Grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, Everything
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, SelectionInputs, Selector, SelectorWeights, TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
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

    content_based = True
    must_be_causal = True
    use_shared_choice = True

    def __post_init__(self) -> None:
        checks.check_count("block_size", self.block_size)
        checks.check_count("num_blocks", self.num_blocks)

    @property
    def reach(self) -> int:
        return self.block_size

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        block = key.position // self.block_size
        seen = block == query.position // self.block_size
        for chosen in query.features.values():
            seen = (chosen == block) | seen
        return seen

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        chosen = cast(BlockSelection, selection).blocks
        own = OwnBlocks(call.query_length, call.key_length, self.block_size, 0, 0)
        if not chosen:
            return own
        group_size = call.group_size if self.use_shared_choice else 1
        return OwnAndSelected(own, SelectedTiles(chosen, self.block_size, call.key_length, group_size))

    def cache(self) -> CachePolicy:
        return ChosenSlots(self.block_size, self.num_blocks, self.use_shared_choice)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_switch("use_shared_choice", self.use_shared_choice)
        checks.check_optional_count("choice_chunk_size", self.choice_chunk_size)

    def make_selector(self, weights: SelectorWeights) -> Selector:
        return BlockSelector(self)


@dataclasses.dataclass(frozen=True)
class ChosenSlots(Everything):
    """All positions, of which a query reads its own block and those that were chosen for it.

    Args:
        block_size: b.
        num_blocks: blocks that a query reads.
        shares_reads: whether heads that share keys read the same slots. Default True.
    """

    block_size: int
    num_blocks: int
    shares_reads: bool = True

    def num_slots(self, max_length: Size) -> Size:
        # Whole blocks, and one more than the others that a query can have chosen: see `read`.
        return max_size(blocks_in(max_length, self.block_size), self.num_blocks) * self.block_size

    def read(self, place: TokenInfo, num_slots: Size) -> Tensor:
        chosen = list(place.features.values())
        own = place.position // self.block_size  # (B, 1)
        blocks = [own if not chosen else ops.broadcast_to(own, shape(chosen[0]))]
        # A choice that there is not is read as block `num_blocks` - 1. A query of that block or a later one has all its
        # choices, so that it is later than the query's, and hidden.
        blocks += [ops.where(block >= 0, block, self.num_blocks - 1) for block in chosen]
        slots = ops.stack(blocks, axis=-1)[..., None] * self.block_size + ops.arange(self.block_size, dtype="int32")
        return ops.reshape(slots, (*shape(blocks[0]), self.block_size * len(blocks)))


@dataclasses.dataclass(frozen=True)
class BlockSelection(Selection):
    """The blocks that are selected for each query.

    Args:
        blocks: list of int32 (B, n, T), each another block, negative for none.
    """

    blocks: Sequence[Tensor]

    def features(self) -> TokenFeatures:
        """Return "block_0", "block_1", ..., the selected blocks of each query."""
        return TokenFeatures(choices_by_name(self.blocks), {})


class BlockSelector(Selector):
    """Selects the blocks with the highest score of the query and the mean key.

    Args:
        pattern: the `SelectedBlocks`.
    """

    def __init__(self, pattern: SelectedBlocks) -> None:
        self._pattern = pattern

    def select(self, inputs: SelectionInputs) -> BlockSelection:
        pattern, sides = self._pattern, (inputs.rotated_query, inputs.rotated_key)
        sizes = pattern.block_size, pattern.num_blocks - 1
        return BlockSelection(
            select_blocks(*sides, inputs.masks, *sizes, pattern.use_shared_choice, pattern.choice_chunk_size)
        )

    def init(self, key: Tensor) -> dict[str, Tensor]:
        """Return "block_sum" float32 (B, m, G, H), the sum of the keys of each block."""
        batch, heads, slots, size = shape(key)
        return {"block_sum": ops.zeros((batch, heads, slots // self._pattern.block_size, size), "float32")}

    def fill(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, lengths: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        key = inputs.rotated_key
        exists = ops.arange(shape(key)[2], dtype="int32") < lengths[:, None]
        key = ops.where(exists[:, None, :, None], ops.cast(key, "float32"), 0)
        blocks = split(key, self._pattern.block_size, -2, shape(state["block_sum"])[2])
        return {"block_sum": ops.sum(blocks, axis=-2)}, {}

    def select_next(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, index: Tensor, kept: Tensor
    ) -> tuple[dict[str, Tensor], TokenFeatures]:
        sums = self._add(state["block_sum"], inputs.rotated_key, index, kept)
        means = sums / self._pattern.block_size  # of complete blocks
        num_blocks = shape(means)[2]
        earlier = ops.arange(num_blocks, dtype="int32") < (index // self._pattern.block_size)[:, None, None, None]
        query, num_heads = inputs.rotated_query, inputs.rotated_query.shape[1]
        if self._pattern.use_shared_choice:
            query = sum_groups(query, means.shape[1])
        blocks = best_blocks(query, means, earlier, num_choices(num_blocks, self._pattern.num_blocks - 1))
        return {"block_sum": sums}, BlockSelection([repeat_key_heads(block, num_heads) for block in blocks]).features()

    def _add(self, sums, key, index, kept):
        """Return the sums with the key (B, m, 1, H) of the token at `index` (B,) added, in rows `kept` (B, 1)."""
        size, (batch, heads) = self._pattern.block_size, shape(key)[:2]
        at = ops.broadcast_to(in_range(index // size, shape(sums)[2])[:, None], (batch, heads))
        is_begun = (index % size > 0)[:, None, None, None]
        total = ops.where(is_begun, take_rows(sums, at[..., None]), 0) + ops.cast(key, "float32")
        return write_slot(sums, total, at, kept)


LARGEST_TILE, SMALLEST_TILE = 64, 16  # queries of a tile

INT32_END = 2**31  # one more than the largest


class OwnBlocks(Grid):
    """Each block of queries beside the same block of keys, of which a rule allows all."""

    is_exact = True

    def inside(self) -> Tensor | None:
        whole = are_known(self.key_length) and self.key_length % self.block_size == 0
        return None if whole else super().inside()


class SelectedTiles(Arrangement):
    """The pairs of a query and a block that it chose, sorted by block and cut into tiles of one block each.

    R choices of T queries are R T pairs, and pair r T + t, choice r of query t, has a row of its own in what `restore`
    returns. Each block's list is filled up to whole tiles of q queries, so that R T / q tiles and one for each block
    are enough whatever is chosen: nothing is dropped. O(R T b).

    Args:
        chosen: list of R int32 (B, N, T), blocks of keys before the query's own, negative for none.
        block_size: b, positions of a block.
        key_length: S.
        group_size: N / M heads beside each other that share keys and have the same choices, which are sorted once and
            have the rows of their keys in common. Default 1.
    """

    is_exact = True
    sorts_tokens = True

    def __init__(self, chosen: Sequence[Tensor], block_size: int, key_length: Size, group_size: int = 1) -> None:
        self.key_length, self._block_size = key_length, block_size
        self._choices, self._query_length = len(chosen), shape(chosen[0])[-1]
        heads = chosen[0].shape[1]
        self._num_blocks = blocks_in(key_length, block_size)
        blocks = ops.concatenate([take_key_heads(each, heads // group_size) for each in chosen], axis=-1)  # (B, M, R T)
        found = blocks >= 0
        blocks = ops.where(found, blocks, self._num_blocks)  # those of none come last
        order, ranks, first = _sort_by_block(blocks, self._num_blocks)
        size = min_if_known(min(LARGEST_TILE, max(SMALLEST_TILE, block_size // 2)), self._query_length)
        counts = first[..., 1:] - first[..., :-1]  # (B, M, G)
        tiles = (counts + size - 1) // size
        first_tile, first = ops.cumsum(tiles, axis=-1) - tiles, first[..., :-1]
        pairs = shape(blocks)[-1]
        number = ops.arange(self._most_tiles(size), dtype="int32")
        # The last block that begins at or before a tile; an empty one begins where the next one does.
        begun = ops.cast(first_tile[..., None, :] <= number[:, None], "int32")
        self._shared_blocks = ops.sum(begun, axis=-1) - 1  # (B, M, tiles)
        within = (number - take_numbers(first_tile, self._shared_blocks)) * size
        within = within[..., None] + ops.arange(size, dtype="int32")  # (B, M, tiles, q)
        begins, total = (take_numbers(x, self._shared_blocks)[..., None] for x in (first, counts))
        flat = (*shape(within)[:2], -1)
        held = ops.reshape(within < total, flat)
        in_slots = take_numbers(order, in_range(ops.reshape(begins + within, flat), pairs))
        slots = ranks + take_numbers(first_tile * size - first, in_range(blocks, self._num_blocks))
        slots = ops.where(found, slots, 0)  # of each pair
        self.found, self._block_of_tile, self._held, self._pairs, self._slots = (
            repeat_key_heads(x, heads) for x in (found, self._shared_blocks, held, in_slots, slots)
        )
        self._tokens = self._pairs % self._query_length
        batch, _, *sizes = shape(within)
        self._tiled = batch, heads, *sizes

    def _most_tiles(self, size):
        """Returns how many tiles of so many queries are enough whatever is chosen."""
        length, blocks, pairs = self._query_length, self._num_blocks, self._query_length * self._choices
        if are_known(length, blocks):  # the first blocks have fewer before them than choices
            in_block = [min(self._block_size, length - begin) for begin in range(0, length, self._block_size)]
            pairs = sum(min(before, self._choices) * number for before, number in enumerate(in_block))
            blocks = max(blocks - 1, 1)  # no query is after the last one
        return max_size((pairs + (size - 1) * blocks) // size, 1)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            x = ops.broadcast_to(x, (*self._tiled[:2], self._query_length))
            return ops.reshape(take_numbers(x, self._tokens), self._tiled)
        split_sizes = (*self._tiled[:2], self._choices, self._query_length)
        slots, found = (ops.reshape(each, split_sizes) for each in (self._slots, self.found))
        return ops.reshape(_take_often(x, self._tokens, slots, found), (*self._tiled, shape(x)[-1]))

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        dtype, blocks = x.dtype, split(x, self._block_size, axis, self._num_blocks)
        if axis == -1:
            blocks = ops.broadcast_to(ops.cast(blocks, "int32"), (*self._tiled[:2], *shape(blocks)[2:]))
        tiles = self._block_of_tile if axis == -1 else self._shared_blocks
        return ops.cast(take_blocks(blocks, tiles), dtype)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        rows = ops.reshape(x, (*shape(x)[:2], -1, shape(x)[-1]))
        return _take_once(rows, self._slots, self.found, self._pairs, self._held)

    def query_positions(self) -> Tensor:
        return ops.reshape(self._tokens, self._tiled)

    def key_positions(self) -> Tensor:
        return self._block_of_tile[..., None] * self._block_size + ops.arange(self._block_size, dtype="int32")

    def past(self) -> Tensor:
        return np.ones((1, 1), bool)  # of a chosen block, which is before the query's own

    def by_choice(self, attended: Attended) -> Attended:
        """Returns the results of each choice, (B, N, R, T, ..), of what `restore` made of all."""
        log_sum_exp = cast(Tensor, attended.log_sum_exp)  # as asked for
        parts = attended._replace(log_sum_exp=ops.where(self.found, log_sum_exp, lowest(log_sum_exp.dtype)))
        sizes = *self._tiled[:2], self._choices, self._query_length
        return Attended(*(None if x is None else ops.reshape(x, (*sizes, *shape(x)[3:])) for x in parts))


class OwnAndSelected(Arrangement):
    """A query's own block, and the blocks that it chose: one softmax, merged by the log-sum-exp of each.

    Args:
        own: an `OwnBlocks`.
        selected: a `SelectedTiles`.
    """

    shares_softmax = True

    def __init__(self, own: OwnBlocks, selected: SelectedTiles) -> None:
        self.parts, self._selected = (own, selected), selected

    def combine(self, results: Sequence[Attended]) -> Attended:
        own, selected = results[0], self._selected.by_choice(results[1])
        first = ops.expand_dims(own.log_sum_exp, axis=2)
        sums = ops.concatenate([first, selected.log_sum_exp], axis=2)  # (B, N, 1 + R, T)
        of_own, of_others = ops.split(ops.softmax(sums, axis=2)[..., None], [1], axis=2)

        def merged(one, others):
            if one is None:
                return None
            parts = one * ops.cast(of_own[:, :, 0], one.dtype), others * ops.cast(of_others, one.dtype)
            return parts[0] + ops.sum(parts[1], axis=2)

        return Attended(
            merged(own.output, selected.output), merged(own.weights, selected.weights), ops.logsumexp(sums, axis=2)
        )


def _sort_by_block(blocks, num_blocks):
    """Returns pairs by (block, pair), the rank of each, both (B, M, P), and each block's first rank, (B, M, G + 1).

    Block and pair are one number while it has 31 bits: up to 370,000 positions, two choices each, of blocks of 128.
    """
    pairs = shape(blocks)[-1]
    if not are_known(pairs, num_blocks) or (num_blocks + 1) * pairs < INT32_END:
        packed = ops.sort(blocks * pairs + ops.arange(pairs, dtype="int32"), axis=-1)
        order, in_order = packed % pairs, packed // pairs
        ranks = ops.cast(ops.argsort(order, axis=-1), "int32")
    else:
        order, ranks = stable_order(blocks)
        in_order = take_numbers(blocks, order)
    return order, ranks, _first_ranks(in_order, num_blocks)


def _first_ranks(in_order, num_blocks):
    """Returns how many of ascending numbers (B, M, P) are less than 0, 1 .. G, int32 (B, M, G + 1): a binary search."""
    batch, heads, pairs = shape(in_order)
    wanted = ops.arange(num_blocks + 1, dtype="int32")
    low = ops.zeros((batch, heads, num_blocks + 1), "int32")
    high = low + pairs
    for _ in range(pairs.bit_length() if are_known(pairs) else 31):
        middle = (low + high) // 2
        less = ops.logical_and(take_numbers(in_order, in_range(middle, pairs)) < wanted, low < high)
        low, high = ops.where(less, middle + 1, low), ops.where(less, high, middle)
    return low


@ops.custom_gradient
def _take_once(x, slots, found, pairs, held):
    """Returns rows (B, N, I, X) at `slots` (B, N, P), zeros where not `found`; row i is `pairs[i]` of them if `held`.

    One function, since the gradient need not be masked on both sides.
    """

    def grad(*args, upstream=None):
        rows = take_rows(upstream_gradient(args, upstream), pairs)
        return ops.where(held[..., None], rows, 0), None, None, None, None

    return ops.where(found[..., None], take_rows(x, slots), 0), grad


@ops.custom_gradient
def _take_often(x, index, slots, found):
    """Returns rows (B, N, T, X) at `index` (B, N, I); each is taken in the slots (B, N, R, T) where it is `found`.

    What the other slots hold must not be used: their gradient is dropped.
    """

    def grad(*args, upstream=None):
        rows = take_rows(upstream_gradient(args, upstream), ops.reshape(slots, (*shape(slots)[:2], -1)))
        rows = ops.reshape(rows, (*shape(slots), shape(rows)[-1]))
        return ops.sum(ops.where(found[..., None], rows, 0), axis=2), None, None, None

    return take_rows(x, index), grad
