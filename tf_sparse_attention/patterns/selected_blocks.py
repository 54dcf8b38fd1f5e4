"""Block selection: the query's own block and the highest-scoring earlier blocks."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.attend import Attended, combine_attended, lowest
from tf_sparse_attention.ops.block_selection import (
    best_blocks,
    count_blocks,
    num_selectable,
    select_blocks,
    sum_groups,
)
from tf_sparse_attention.ops.gather import (
    stable_order,
    take_blocks,
    take_numbers,
    take_rows,
    upstream_gradient,
    write_slots,
)
from tf_sparse_attention.ops.shapes import (
    are_known,
    in_range,
    max_size,
    min_if_known,
    repeat_key_heads,
    shape,
    slice_axis,
    split,
    take_key_heads,
)
from tf_sparse_attention.patterns.arrangement import MAX_RUNS, Arrangement, Grid, OneGroup, QueryRuns, query_runs
from tf_sparse_attention.patterns.cache_policies import Buckets, CachePolicy, Everything, dequantize_rows
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import (
    NewTokens,
    Selection,
    SelectionInputs,
    Selector,
    SelectorWeights,
    TokenFeatures,
    TokenInfo,
)
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class GivenBlocks(Pattern):
    """The query's block up to its position, and earlier blocks selected by the layer, as in `NativeSparseAttention`.

    Query features "block_0", "block_1", ... are the indices of the selected blocks. The indices are distinct; a
    negative value means no block.

    Attributes:
        use_shared_choice: whether query heads that share a key head select the same blocks, which are then arranged and
            read once.

    Args:
        block_size: b, positions per block. Default 128.
        num_blocks: maximum number of blocks per query, including its own block. Default 3.

    Raises:
        ValueError: if an argument is not a positive integer, or if a call is not causal.
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
        visible = block == query.position // self.block_size
        for selected in query.features.values():
            visible = (selected == block) | visible
        return visible

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        blocks, length = cast(BlockSelection, selection).blocks, call.query_length
        own = OwnBlocks(length, call.key_length, self.block_size, 0, 0)
        if blocks is None:
            return own
        if not tiles_are_faster(length, blocks.shape[-1], self.block_size):
            numbers = ops.arange(count_blocks(length, self.block_size), dtype="int32")
            choices = [blocks[..., rank, None] == numbers for rank in range(blocks.shape[-1])]
            is_selected = functools.reduce(ops.logical_or, choices)  # no array of all ranks and blocks
            runs = query_runs(length)
            return QueryRuns(MaskedBlocks(is_selected, run, self.block_size, length) for run in runs)
        group_size = call.group_size if self.use_shared_choice else 1
        return OneSoftmax(own, SelectedTiles(blocks, self.block_size, call.key_length, group_size))

    def cache(self) -> CachePolicy:
        return SelectedSlots(self.block_size, self.num_blocks, self.use_shared_choice)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class SelectedBlocks(GivenBlocks):
    """The query's block up to its position and the highest-scoring earlier blocks, in one softmax.

    Query i attends to block i // b and to the `num_blocks` - 1 earlier blocks with the largest q_i . mean(k), or to all
    earlier blocks if there are fewer. Among equal scores, the earlier block wins. Each head selects separately. Block
    means use the RoPE-rotated keys, as attention scores do. The selection has no gradient. Only for causal
    self-attention.

    Cost O(T num_blocks b) for attention and O(T^2 / b) for the selection. The selection computes T^2 / b scores per
    head. With `choice_chunk_size` c, a loop computes at most c T / b scores at a time. Decoding keeps all keys. Each
    token reads T / b means and num_blocks * b keys.

    Block boundaries do not depend on packed documents. A block belongs to the document of its last token. The mean of a
    block uses only keys of this document. Only queries of this document can select the block. Padding is excluded from
    means. A document is one run of equal `segment_ids`. The document's id must be unique in the row.

    Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs" (arXiv 2502.13189).

    Args:
        block_size: b, positions per block. Default 128.
        num_blocks: blocks per query, including its own block. Default 3.
        use_shared_choice: whether query heads that share a key head select the same blocks, by the sum of their scores.
            Default False: each head selects separately.
        choice_chunk_size: queries per step of the selection. None: process all queries at once.

    Raises:
        ValueError: if an argument is invalid, or if a call is not causal.

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
class SelectedSlots(Everything):
    """All positions. A query reads its block and the selected blocks, `num_blocks` in total."""

    block_size: int
    num_blocks: int
    shares_reads: bool = True
    is_exact = True

    def num_slots(self, max_length: Size) -> Size:
        return count_blocks(max_length, self.block_size) * self.block_size

    def buckets(self, query: TokenInfo, num_slots: Size, selection: Any = None) -> Buckets | None:
        return Buckets(with_own_block(query.position // self.block_size, selection.blocks), self.block_size)


def numbered(name: str, choices: Tensor | None) -> dict[str, Tensor]:
    """Return choices (B, n, T, R) of queries as features "NAME_0", "NAME_1", ..., empty for None."""
    count = 0 if choices is None else choices.shape[-1]
    return {f"{name}_{number}": cast(Tensor, choices)[..., number] for number in range(count)}


def with_own_block(own: Tensor, choices: Tensor | None) -> Tensor:
    """Return the query's own block (B, 1, q) and its choices (B, n, q, R) in one array, (B, 1 or n, q, 1 + R)."""
    if choices is None:
        return own[..., None]
    return ops.concatenate([ops.broadcast_to(own[..., None], (*shape(choices)[:3], 1)), choices], axis=-1)


@dataclasses.dataclass(frozen=True)
class BlockSelection(Selection):
    """The selected blocks of each query.

    Args:
        blocks: int32 (B, n, T, R), indices of distinct blocks; a negative value means no block. None: R = 0.
    """

    blocks: Tensor | None

    def features(self) -> TokenFeatures:
        """Return "block_0", "block_1", ..., the selected blocks of each query."""
        return TokenFeatures(numbered("block", self.blocks), {})


class BlockSelector(Selector):
    """Selects the blocks with the highest score of the query and the mean key."""

    def __init__(self, pattern: SelectedBlocks) -> None:
        self._pattern = pattern

    def select(self, inputs: SelectionInputs) -> BlockSelection:
        pattern, sides = self._pattern, (inputs.rotated_query, inputs.rotated_key)
        sizes = pattern.block_size, pattern.num_blocks - 1
        return BlockSelection(
            select_blocks(*sides, inputs.masks, *sizes, pattern.use_shared_choice, pattern.choice_chunk_size)
        )

    def init(self, entry: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the initial decoding state: "block_sum", float32 (B, m, G, H), the sum of the keys of each block."""
        batch, heads, slots, size = shape(entry["key"])
        return {"block_sum": ops.zeros((batch, heads, slots // self._pattern.block_size, size), "float32")}

    def add(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"block_sum": add_to_sums(state["block_sum"], inputs.rotated_key, tokens, self._pattern.block_size)}, {}

    def select_new(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens, added: Mapping[str, Tensor]
    ) -> Selection | TokenFeatures:
        means = state["block_sum"] / self._pattern.block_size  # of complete blocks
        num_blocks = shape(means)[2]
        ends = tokens.positions // self._pattern.block_size
        earlier = ops.arange(num_blocks, dtype="int32") < ends[:, None, :, None]
        query, num_heads = inputs.rotated_query, inputs.rotated_query.shape[1]
        if self._pattern.use_shared_choice:
            query = sum_groups(query, means.shape[1])
        count = num_selectable(num_blocks, self._pattern.num_blocks - 1)
        if count == 0:
            return BlockSelection(None)
        return BlockSelection(repeat_key_heads(best_blocks(query, means, earlier, count), num_heads))

    def rewind(self, entry: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        return {"block_sum": rewind_sums(entry["block_sum"], entry, lengths, self._pattern.block_size)}


def add_to_sums(sums: Tensor, key: Tensor, tokens: NewTokens, size: int) -> Tensor:
    """Add the keys (B, m, q, H) of new tokens to the sums of the keys of each block of `size`, float32 (B, m, G, H)."""
    batch, heads, num_blocks, channels = shape(sums)
    key, block = ops.cast(key, "float32"), in_range(tokens.positions // size, num_blocks)
    if tokens.length == 1:
        at = ops.broadcast_to(block[:, None], (batch, heads, 1))
        has_keys = (tokens.positions % size > 0)[:, None, :, None]
        total = ops.where(has_keys, take_rows(sums, at), 0) + key
        return write_slots(sums, total, at, tokens.exists[:, None])
    key = ops.where(tokens.exists[:, None, :, None], key, 0)
    rows = ops.reshape(ops.arange(batch * heads, dtype="int32"), (batch, heads, 1)) * num_blocks + block[:, None]
    added = ops.segment_sum(
        ops.reshape(key, (-1, channels)), ops.reshape(rows, (-1,)), num_segments=batch * heads * num_blocks
    )
    # Blocks that begin among the new tokens have no keys yet.
    is_old = ops.arange(num_blocks, dtype="int32") * size < tokens.start[:, None]
    is_old = ops.logical_or(is_old, tokens.counts[:, None] == 0)  # rows without tokens keep all sums
    old = ops.where(is_old[:, None, :, None], sums, 0)
    return old + ops.reshape(added, (batch, heads, num_blocks, channels))


def rewind_sums(sums: Tensor, entry: Mapping[str, Tensor], lengths: Tensor, size: int) -> Tensor:
    """Return the sums of `add_to_sums` without the tokens of a cache entry from position `lengths` (B,) on."""
    batch, heads, num_blocks, _ = shape(sums)
    block = ops.broadcast_to(in_range(lengths // size, num_blocks)[:, None, None], (batch, heads, 1))
    rows = dequantize_rows(entry["key"], entry.get("key_scale"), "float32")
    keys = take_blocks(split(rows, size, -2, num_blocks), block)[:, :, 0]  # (B, m, size, H)
    remain = ops.arange(size, dtype="int32") < (lengths % size)[:, None]
    total = ops.sum(ops.where(remain[:, None, :, None], keys, 0), axis=2, keepdims=True)
    return write_slots(sums, total, block, (lengths % size > 0)[:, None, None])


MAX_TILE_SIZE, MIN_TILE_SIZE = 64, 16  # queries per tile
TILE_COST = 56  # time to gather and merge a query for each selected block, in keys attended to: measured on CPUs
INT32_END = 2**31


class OwnBlocks(Grid):
    """Each block of queries with the same block of keys, all of which the pattern allows."""

    is_exact = True

    def key_exists(self) -> Tensor | None:
        whole = are_known(self.key_length) and self.key_length % self.block_size == 0
        return None if whole else super().key_exists()


def tiles_are_faster(length: Size, num_selected: int, block_size: int) -> bool:
    """Return whether attention to selected blocks takes less time in `SelectedTiles` than in `MaskedBlocks`."""
    if not are_known(length):
        return True
    return num_selected * (block_size + TILE_COST) < length * (MAX_RUNS + 1) / (2 * MAX_RUNS)  # keys per query


class MaskedBlocks(OneGroup):
    """A range of queries with all keys up to its end, and a mask of the query's block and the selected blocks.

    Args:
        is_selected: bool (B, N, T, G), whether a query selects a block.
        query_range: pair of the first query, and the one after the last.
        block_size: b.
        key_length: S.
    """

    is_exact = True
    has_pair_mask = True

    def __init__(self, is_selected: Tensor, query_range: tuple[int, int], block_size: int, key_length: Size) -> None:
        self._is_selected, self._range, self._block_size, self.key_length = (
            is_selected,
            query_range,
            block_size,
            key_length,
        )

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(slice_axis(x, axis, *self._range), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(slice_axis(x, axis, 0, self._range[1]), axis - 1)

    def query_positions(self) -> Tensor:
        return np.arange(*self._range, dtype="int32")[None]

    def key_positions(self) -> Tensor:
        return np.arange(self._range[1], dtype="int32")[None]

    def causal_mask(self) -> np.ndarray:
        return np.arange(*self._range)[:, None] >= np.arange(self._range[1])

    def pair_mask(self) -> Tensor:
        stop, size = self._range[1], self._block_size
        selected = slice_axis(slice_axis(self._is_selected, -2, *self._range), -1, 0, count_blocks(stop, size))
        selected = slice_axis(ops.repeat(selected, size, axis=-1), -1, 0, stop)
        own = np.arange(*self._range)[:, None] // size == np.arange(stop) // size
        return ops.logical_or(selected, own)[:, :, None]  # LiteRT cannot broadcast logical operations of five axes


class SelectedTiles(Arrangement):
    """Pairs of a query and a selected block, sorted by block and cut into tiles of one block each. O(R T b).

    T queries with R selections are R T pairs. Pair r T + t is selection r of query t, and has one row in the result of
    `restore`. The pairs of each block are padded to full tiles of q queries, so that R T / q tiles plus one per block
    are always enough: no pair is dropped.

    Args:
        blocks: int32 (B, N, T, R), indices of key blocks before the query's block; a negative value means no block.
        block_size: b, positions per block.
        key_length: S.
        group_size: N / M consecutive heads that share keys and selections, which are sorted once. Default 1.
    """

    is_exact = True
    sorts_tokens = True

    def __init__(self, blocks: Tensor, block_size: int, key_length: Size, group_size: int = 1) -> None:
        self.key_length, self._block_size = key_length, block_size
        _, heads, self._query_length, self._num_choices = shape(blocks)
        self._num_blocks = count_blocks(key_length, block_size)
        block = ops.swapaxes(take_key_heads(blocks, heads // group_size), 2, 3)
        block = ops.reshape(block, (*shape(block)[:2], self._num_choices * self._query_length))  # (B, M, R T)
        found = block >= 0
        block = ops.where(found, block, self._num_blocks)  # missing selections come last
        order, ranks, first = _sort_by_block(block, self._num_blocks)
        size = min_if_known(min(MAX_TILE_SIZE, max(MIN_TILE_SIZE, block_size // 2)), self._query_length)
        counts = first[..., 1:] - first[..., :-1]  # (B, M, G)
        tiles = (counts + size - 1) // size
        first_tile, first = ops.cumsum(tiles, axis=-1) - tiles, first[..., :-1]
        number = ops.arange(self._max_tiles(size), dtype="int32")
        # The last block that begins at or before a tile. An empty block begins with the next block.
        has_begun = ops.cast(first_tile[..., None, :] <= number[:, None], "int32")
        self._shared_blocks = ops.sum(has_begun, axis=-1) - 1  # (B, M, tiles)
        offset = (number - take_numbers(first_tile, self._shared_blocks)) * size
        offset = offset[..., None] + ops.arange(size, dtype="int32")  # (B, M, tiles, q)
        start, count = (take_numbers(x, self._shared_blocks)[..., None] for x in (first, counts))
        flat = (*shape(offset)[:2], -1)
        held = ops.reshape(offset < count, flat)
        pairs = take_numbers(order, in_range(ops.reshape(start + offset, flat), shape(block)[-1]))  # of each slot
        slots = ranks + take_numbers(first_tile * size - first, in_range(block, self._num_blocks))  # of each pair
        slots = ops.where(found, slots, 0)
        self._found, self._block_of_tile, self._held, self._pairs, self._slots = (
            repeat_key_heads(x, heads) for x in (found, self._shared_blocks, held, pairs, slots)
        )
        self._tokens = self._pairs % self._query_length
        batch, _, *sizes = shape(offset)
        self._sizes = batch, heads, *sizes

    def _max_tiles(self, size):
        """Return the number of tiles of `size` queries that is enough for any selection."""
        length, blocks, pairs = self._query_length, self._num_blocks, self._query_length * self._num_choices
        if are_known(length, blocks):  # the first blocks have few earlier blocks to select
            counts = [min(self._block_size, length - start) for start in range(0, length, self._block_size)]
            pairs = sum(min(before, self._num_choices) * count for before, count in enumerate(counts))
            blocks = max(blocks - 1, 1)  # no query is after the last one
        return max_size((pairs + (size - 1) * blocks) // size, 1)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            x = ops.broadcast_to(x, (*self._sizes[:2], self._query_length))
            return ops.reshape(take_numbers(x, self._tokens), self._sizes)
        sizes = (*self._sizes[:2], self._num_choices, self._query_length)
        slots, found = (ops.reshape(each, sizes) for each in (self._slots, self._found))
        return ops.reshape(_gather_repeated(x, self._tokens, slots, found), (*self._sizes, shape(x)[-1]))

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        dtype, blocks = x.dtype, split(x, self._block_size, axis, self._num_blocks)
        if axis == -1:
            blocks = ops.broadcast_to(ops.cast(blocks, "int32"), (*self._sizes[:2], *shape(blocks)[2:]))
        tiles = self._block_of_tile if axis == -1 else self._shared_blocks
        return ops.cast(take_blocks(blocks, tiles), dtype)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        rows = ops.reshape(x, (*shape(x)[:2], -1, shape(x)[-1]))
        return _gather_unique(rows, self._slots, self._found, self._pairs, self._held)

    def query_positions(self) -> Tensor:
        return ops.reshape(self._tokens, self._sizes)

    def key_positions(self) -> Tensor:
        return self._block_of_tile[..., None] * self._block_size + ops.arange(self._block_size, dtype="int32")

    def causal_mask(self) -> Tensor:
        return np.ones((1, 1), bool)  # selected blocks are before the query's block

    def merge_choices(self, attended: Attended) -> Attended:
        """Merge the restored results of the R selections of each query, (B, N, R T, ..) to (B, N, T, ..)."""
        log_sum_exp = cast(Tensor, attended.log_sum_exp)
        sums = ops.where(self._found, log_sum_exp, lowest(log_sum_exp.dtype))
        sizes = *self._sizes[:2], self._num_choices, self._query_length
        sums = ops.reshape(sums, sizes)
        total = ops.logsumexp(sums, axis=2)
        shares = ops.exp(sums - total[:, :, None])[..., None]

        def merge(x):
            return ops.sum(ops.reshape(x, (*sizes, shape(x)[-1])) * ops.cast(shares, x.dtype), axis=2)

        weights = None if attended.weights is None else merge(attended.weights)
        return Attended(merge(attended.output), weights, total)


class OneSoftmax(Arrangement):
    """Different keys of the same queries in one softmax.

    Args:
        parts: the arrangements.
    """

    shares_softmax = True

    def __init__(self, *parts: Arrangement) -> None:
        self.parts = parts

    def combine(self, results: Sequence[Attended]) -> Attended:
        return combine_attended(
            [
                part.merge_choices(each) if isinstance(part, SelectedTiles) else each
                for part, each in zip(self.parts, results, strict=True)
            ]
        )


def _sort_by_block(blocks, num_blocks):
    """Sort pairs (B, M, P) by (block, pair). Return the pairs, their ranks, and the first rank per block (B, M, G + 1).

    Block and pair are packed into one int32 number if they fit: up to 370,000 positions, two selections, blocks of 128.
    """
    pairs = shape(blocks)[-1]
    if not are_known(pairs, num_blocks) or (num_blocks + 1) * pairs < INT32_END:
        packed = ops.sort(blocks * pairs + ops.arange(pairs, dtype="int32"), axis=-1)
        order, sorted_blocks = packed % pairs, packed // pairs
        ranks = ops.cast(ops.argsort(order, axis=-1), "int32")
    else:
        order, ranks = stable_order(blocks)
        sorted_blocks = take_numbers(blocks, order)
    return order, ranks, _first_ranks(sorted_blocks, num_blocks)


def _first_ranks(sorted_blocks, num_blocks):
    """Count the ascending numbers (B, M, P) less than 0, 1, ..., G by binary search, int32 (B, M, G + 1)."""
    batch, heads, pairs = shape(sorted_blocks)
    wanted = ops.arange(num_blocks + 1, dtype="int32")
    low = ops.zeros((batch, heads, num_blocks + 1), "int32")
    high = low + pairs
    for _ in range(pairs.bit_length() if are_known(pairs) else 31):
        middle = (low + high) // 2
        less = ops.logical_and(take_numbers(sorted_blocks, in_range(middle, pairs)) < wanted, low < high)
        low, high = ops.where(less, middle + 1, low), ops.where(less, high, middle)
    return low


@ops.custom_gradient
def _gather_unique(x, slots, found, pairs, held):
    """Gather rows (B, N, I, X) at `slots` (B, N, P), each at most once, with zeros where not `found`.

    Row i of `x` is row `pairs[i]` of the result if `held`. The gradient is a gather too.
    """

    def grad(*args, upstream=None):
        rows = take_rows(upstream_gradient(args, upstream), pairs)
        return ops.where(held[..., None], rows, 0), None, None, None, None

    return ops.where(found[..., None], take_rows(x, slots), 0), grad


@ops.custom_gradient
def _gather_repeated(x, index, slots, found):
    """Gather rows (B, N, T, X) at `index` (B, N, I). Row t is in the slots (B, N, R, T) where `found`.

    The gradient ignores all other slots, so their rows must not be used.
    """

    def grad(*args, upstream=None):
        rows = take_rows(upstream_gradient(args, upstream), ops.reshape(slots, (*shape(slots)[:2], -1)))
        rows = ops.reshape(rows, (*shape(slots), shape(rows)[-1]))
        return ops.sum(ops.where(found[..., None], rows, 0), axis=2), None, None, None

    return take_rows(x, index), grad
