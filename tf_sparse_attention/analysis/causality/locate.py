"""Search for the source of a leak: the layer, its heads, and the distance of the input."""

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np

from tf_sparse_attention.analysis.causality.comparison import change, change_by_head
from tf_sparse_attention.analysis.causality.inputs import AuditInputs
from tf_sparse_attention.analysis.causality.target import AuditTarget, LayerCall
from tf_sparse_attention.layers.parts.projections import head_count


class Source(NamedTuple):
    """Path of the first leaking layer, or None if unknown, and the indices of its leaking heads."""

    layer: str | None = None
    heads: tuple[int, ...] = ()


def find_source(
    subject: AuditTarget,
    inputs: AuditInputs,
    arrays: Sequence[np.ndarray],
    cut: int,
    atol: float,
    positions: slice = slice(None),
) -> Source:
    """Find the first layer, inner layers first, whose outputs before `cut` depend on inputs from `cut` on.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        arrays: arrays of the inputs, replaced from `cut` on or truncated at `cut`.
        cut: first position of later inputs.
        atol: largest change that counts as rounding, in units of the scale of a layer's outputs.
        positions: positions to compare; only their values are kept. Default: all.

    Returns:
        `Source`. Heads are known if a sublayer has an input (B, T, N, H), like the output projection of attention.
    """
    begin, end, _ = positions.indices(cut)
    rows, whole = inputs.batch_and_length
    length = inputs.length_of(arrays)
    is_shorter = length < whole
    before = subject.layer_calls(inputs.pack(inputs.arrays), (rows, whole), slice(begin, end))
    after = subject.layer_calls(inputs.pack(arrays), (rows, length), slice(begin, end))
    # The shorter list ends the comparison: other inputs may call other layers.
    calls = list(zip(before, after, strict=False))
    for index, (old, new) in enumerate(calls):
        sources = _comparable(old.inputs, new.inputs, is_shorter)
        # A layer without recorded inputs is skipped; its parent layer is reported.
        if not sources or _changes(sources, atol):
            continue
        if _changes(_comparable(old.outputs, new.outputs, is_shorter), atol):
            return Source(old.path, _find_heads(old.layer, calls[:index], atol))
    return Source()


def find_distance(position: int, cut: int, length: int, depends: Callable[[int], bool]) -> int:
    """Return the distance from `position` to the farthest later input that its output depends on.

    Args:
        position: position of an output that depends on inputs from `cut` on.
        cut: first position of later inputs.
        length: number of positions of the inputs.
        depends: function of a position that returns whether the output depends on inputs from this position on. Called
            about log2(length) times. If the dependence is not monotonic, as in selections, the distance is one of
            several.
    """
    cuts = range(cut + 1, length)
    return cut + bisect.bisect_left(cuts, True, key=lambda later: not depends(later)) - position


def _comparable(olds, news, is_shorter):
    """Return pairs of arrays that can be compared; for a shorter sequence, arrays with the same axes after (B, T)."""
    pairs = list(zip(olds, news, strict=False))
    if not is_shorter:
        return pairs
    return [(old, new) for old, new in pairs if old.shape[2:] == new.shape[2:]] if len(olds) == len(news) else []


def _changes(pairs, atol):
    return any(old.shape != new.shape or (old.size and change(old, new).max() > atol) for old, new in pairs)


def _find_heads(layer: keras.Layer, calls: Sequence[tuple[LayerCall, LayerCall]], atol: float) -> tuple[int, ...]:
    num_heads = head_count(layer)
    parts = {id(part) for part in layer._flatten_layers(include_self=False)}
    # Search backwards, to find the output projection instead of a QK norm.
    for old, new in reversed(calls):
        if id(old.layer) not in parts or not old.inputs or not new.inputs:
            continue
        olds, news = old.inputs[0], new.inputs[0]
        if olds.ndim == 4 and olds.shape == news.shape and olds.shape[2] == num_heads:
            return tuple(np.flatnonzero(change_by_head(olds, news) > atol).tolist())
    return ()
