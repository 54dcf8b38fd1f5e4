"""Where a look ahead comes from: the layer, its heads, and how far ahead the input lies."""

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
    """The first layer that looks ahead, None where none is seen to, and those of its heads that do."""

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
    """Find the first layer, inner ones first, that carries a change from `cut` on to positions before it.

    Args:
        subject: `AuditTarget`.
        inputs: `AuditInputs`.
        arrays: those of the inputs with other ones from `cut` on, or with none.
        cut: position from which on inputs count as later.
        atol: largest change that counts as none, in units of the scale of a layer's outputs.
        positions: those to look at, which is all that is kept. Default: all.

    Returns:
        `Source`. A layer shows its heads where a sublayer of it takes them as (B, T, N, H), as the output projections
        of attention do.
    """
    begin, end, _ = positions.indices(cut)
    rows, whole = inputs.batch_and_length
    length = inputs.length_of(arrays)
    is_shorter = length < whole
    before = subject.layer_calls(inputs.pack(inputs.arrays), (rows, whole), slice(begin, end))
    after = subject.layer_calls(inputs.pack(arrays), (rows, length), slice(begin, end))
    # The shorter one ends the comparison: other inputs may take another way through the layers.
    calls = list(zip(before, after, strict=False))
    for index, (old, new) in enumerate(calls):
        sources = _comparable(old.inputs, new.inputs, is_shorter)
        # A layer whose inputs are not recorded is not named; the layer around it is.
        if not sources or _changes(sources, atol):
            continue
        if _changes(_comparable(old.outputs, new.outputs, is_shorter), atol):
            return Source(old.path, _find_heads(old.layer, calls[:index], atol))
    return Source()


def find_distance(position: int, cut: int, length: int, depends: Callable[[int], bool]) -> int:
    """Return how many positions ahead of `position` the farthest input lies that its output depends on.

    Args:
        position: of an output that depends on inputs from `cut` on.
        cut: see above.
        length: positions of the inputs.
        depends: whether it depends on inputs from a position on. Asked some log2(length) times: where selections let
            dependence come and go, the distance is one of several.
    """
    cuts = range(cut + 1, length)
    return cut + bisect.bisect_left(cuts, True, key=lambda later: not depends(later)) - position


def _comparable(olds, news, is_shorter):
    """Pairs of arrays of the same kind; in a shorter sequence those of one entry a pair of positions are not."""
    pairs = list(zip(olds, news, strict=False))
    if not is_shorter:
        return pairs
    return [(old, new) for old, new in pairs if old.shape[2:] == new.shape[2:]] if len(olds) == len(news) else []


def _changes(pairs, atol):
    return any(old.shape != new.shape or (old.size and change(old, new).max() > atol) for old, new in pairs)


def _find_heads(layer: keras.Layer, calls: Sequence[tuple[LayerCall, LayerCall]], atol: float) -> tuple[int, ...]:
    num_heads = head_count(layer)
    parts = {id(part) for part in layer._flatten_layers(include_self=False)}
    # From the last call back: the projection of outputs, not a norm of queries and keys.
    for old, new in reversed(calls):
        if id(old.layer) not in parts or not old.inputs or not new.inputs:
            continue
        olds, news = old.inputs[0], new.inputs[0]
        if olds.ndim == 4 and olds.shape == news.shape and olds.shape[2] == num_heads:
            return tuple(np.flatnonzero(change_by_head(olds, news) > atol).tolist())
    return ()
