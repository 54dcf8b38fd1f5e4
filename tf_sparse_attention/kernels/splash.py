"""Splash attention, JAX's kernel for TPUs, over the pairs of slots that a rule allows.

It moves queries, keys, values and results once, where plain operations write the scores of each block to the memory
and read them again. Blocks of slots of which the rule allows no pair are left out.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.kernels.choice import SlotPairs
from tf_sparse_attention.kernels.devices import over_devices
from tf_sparse_attention.kernels.rules import evaluate, visible_blocks
from tf_sparse_attention.ops.blocks import pad_axis, slice_axis
from tf_sparse_attention.types import Tensor

DTYPES = ("float32", "bfloat16")  # TPUs read no float16
LANES = 128  # of a TPU; a block is a whole number of them
LARGEST_BLOCK = 512
MOST_BLOCKS = 256  # on a side; each pair of them is looked at when the program is made


def attend_slots(query: Tensor, key: Tensor, value: Tensor, pairs: SlotPairs, interpret: bool = False) -> Tensor:
    """Returns softmax attention of each query slot over the key slots that it may see.

    Args:
        query: scaled queries (B, N, T, H), float32 or bfloat16.
        key: (B, N, S, H).
        value: (B, N, S, Hv).
        pairs: a `SlotPairs`.
        interpret: whether to interpret the kernel, on any device.

    Returns:
        Tensor (B, N, T, Hv) in the dtype of `value`; a query that sees no key gets a mean of some values.
    """
    lengths = query.shape[2], key.shape[2]
    block = _block_size(max(lengths), pairs)
    sizes = tuple(-(-length // block) * block for length in lengths)
    arrays = [_padded(x, size) for x, size in ((query, sizes[0]), (key, sizes[1]), (value, sizes[1]))]
    if pairs.query_groups is not None:
        arrays += [_padded(x, size) for x, size in zip((pairs.query_groups, pairs.key_groups), sizes, strict=True)]

    def attend(*parts):
        return _attend_part(pairs, sizes, lengths[1], block, interpret, *parts)

    output = slice_axis(over_devices(attend, arrays), -2, 0, lengths[0])
    return ops.cast(output, value.dtype)  # the kernel has that of the query


def can_attend(query: Tensor, key: Tensor, value: Tensor, interpret: bool = False) -> bool:
    """Returns whether the kernel takes arrays of this dtype."""
    return keras.backend.standardize_dtype(query.dtype) in DTYPES


def _block_size(length, pairs):
    """Returns the slots of a block for a sequence of `length`, of queries or keys.

    About as many as the rule reaches: of larger blocks most pairs are hidden, and each block has a price of its own.
    """
    reach, block = pairs.reach or max(abs(limit) for limit in pairs.limits) + 1, LANES
    while 2 * block <= min(LARGEST_BLOCK, reach, length) or length > MOST_BLOCKS * block:
        block *= 2
    return block


def _padded(x, size):
    """Returns rows (B, N, T, X) or groups (B, N, T) with zeros up to `size` slots."""
    axis = 2 - len(x.shape)
    return pad_axis(x, axis, 0, size - x.shape[2])


def _attend_part(pairs, sizes, key_length, block, interpret, query, key, value, *groups):
    """Returns `attend_slots` of padded arrays, or of the part of them that one device has."""
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    batch, heads = query.shape[:2]
    if groups and groups[0].shape[1] > 1:  # the kernel has groups of a sequence, the same for all of its heads
        query, key, value = (x.reshape(batch * heads, 1, *x.shape[2:]) for x in (query, key, value))
        groups = tuple(x.reshape(batch * heads, 1, -1) for x in groups)
    kernel = slot_kernel(pairs.rule, pairs.limits, sizes, key_length, query.shape[1], block, interpret)
    if kernel is None:
        return ops.zeros((batch, heads, sizes[0], value.shape[-1]), query.dtype)
    segments = SegmentIds(*(x[:, 0] for x in groups)) if groups else None
    output = jax.vmap(lambda *rows: kernel(*rows[:3], segment_ids=rows[3]))(query, key, value, segments)
    return output.reshape(batch, heads, *output.shape[2:])


@functools.lru_cache(maxsize=64)  # of models whose layers have the same pattern, and of programs made again
def slot_kernel(
    rule: Callable,
    limits: tuple[int, int],
    sizes: tuple[int, int],
    key_length: int,
    heads: int,
    block: int,
    interpret: bool,
) -> Any:
    """Returns the kernel of padded sequences, a function of (N, T, H), (N, S, H), (N, S, Hv) and `segment_ids`.

    Of a rule that allows no pair there is none: None.

    Args:
        rule: as in `SlotPairs`; so are `limits`.
        sizes: T and S, whole numbers of blocks.
        key_length: slots of keys that are no padding.
        heads: N.
        block: slots of a block.
        interpret: see `attend_slots`.
    """
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention

    blocks = splash_attention.BlockSizes(*[block] * 8)  # type: ignore[arg-type]  # forward and in both passes of the gradient
    mask = _slot_mask(rule, limits, sizes, key_length)
    starts = (range(0, size, block) for size in sizes)
    if not any(mask[tuple(slice(i, i + block) for i in at)].any() for at in itertools.product(*starts)):
        return None
    with jax.ensure_compile_time_eval():  # constants, whatever program is being traced
        return splash_attention.make_splash_mha(
            splash_attention.MultiHeadMask([mask] * heads),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
        )


def share_of_blocks(pairs: SlotPairs, lengths: tuple[int, int]) -> float:
    """Returns which share of all blocks of slots the kernel computes, of T and S slots."""
    block = _block_size(max(lengths), pairs)
    return float(visible_blocks(pairs.rule, pairs.limits, lengths, (block, block)).some.mean())


def _slot_mask(rule: Callable, limits: tuple[int, int], sizes: tuple[int, int], key_length: int) -> Any:
    """Returns the mask by which the kernel asks for blocks of slots, and in a block for the pairs."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

    def allowed(query_slots, key_slots):
        seen = rule(query_slots, key_slots)
        return seen & (key_slots < key_length) if key_length < sizes[1] or isinstance(seen, bool) else seen

    class SlotMask(splash_attention_mask.Mask):
        mask_function = staticmethod(allowed)
        q_sequence = np.arange(sizes[0], dtype="int32")
        shape = sizes

        def __getitem__(self, index):
            queries, keys = index
            if keys.stop - 1 - queries.start < limits[0] or keys.start - queries.stop + 1 > limits[1]:
                return np.zeros((1, 1), bool)  # asked for `any` alone, once and more for each pair of blocks
            queries, keys = (np.arange(part.start, part.stop, dtype="int32") for part in index)
            return evaluate(allowed, queries[:, None], keys[None, :])

    return SlotMask()
